#include "format/journal/journal_writer.h"

#include <algorithm>
#include <cstring>

#include <accelerate/error.h>

#include "base/files/file_system.h"
#include "base/text/text.h"
#include "format/journal/journal_reader.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(
             JournalWriter::Clock::now().time_since_epoch())
      .count();
}

bool is_all_zero(
    const JournalReader& reader,
    std::uint64_t begin,
    std::uint64_t end) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20U;
  for (; begin < end; begin += kPiece) {
    const std::string bytes = reader.read_bytes(
        begin, static_cast<std::size_t>(std::min(kPiece, end - begin)));
    if (bytes.find_first_not_of('\0') != std::string::npos) return false;
  }
  return true;
}

// Whether the bytes from `begin` to `end` may be the remains of a frame that a
// process or machine was writing when it died: its beginning, or zeros where
// the file system had only extended the file.
bool is_torn_frame(
    const JournalReader& reader,
    std::uint64_t begin,
    std::uint64_t end) {
  if (end - begin > kJournalHeaderBytes + kMostJournalFrameBytes) return false;
  return frame_start_of(reader.read_bytes(begin, kJournalHeaderBytes)) ==
      FrameStart::frame ||
      is_all_zero(reader, begin, end);
}

// Where the next frame is written in a file that has been read. Throws Error if
// the file belongs to somebody else.
std::uint64_t place_of_next_frame(
    const JournalReader& reader,
    const fs::path& path,
    const JournalWriterOptions& options) {
  const std::uint64_t end = reader.end_of_frames();
  const std::uint64_t size = reader.size();
  if (end >= size || is_torn_frame(reader, end, size)) return end;
  if (frame_start_of(reader.read_bytes(end, kJournalHeaderBytes)) ==
      FrameStart::other_version) {
    throw Error(format(
        "[format] the journal {} cannot be continued: a later version wrote "
        "it; give this run a name of its own",
        path.string()));
  }
  if (end == 0) {
    throw Error(format(
        "[format] {} is not a journal, and is left as it is; move it away, or "
        "give this run a name of its own",
        path.string()));
  }
  if (options.report) {
    options.report(format(
        "the last {} bytes of the journal {} are not a valid frame; they are "
        "kept, and this run continues after them",
        size - end,
        path.string()));
  }
  return size;
}

}  // namespace

JournalWriter::JournalWriter(
    const fs::path& path,
    std::string description,
    Options options)
    : JournalWriter(
          open_journal_file(path, make_file_system()),
          path,
          std::move(description),
          std::move(options)) {}

JournalWriter::JournalWriter(
    std::unique_ptr<JournalFile> file,
    const fs::path& path,
    std::string description,
    Options options)
    : options_(std::move(options)), file_(std::move(file)) {
  JournalReader reader(path);
  // Only the end of its frames is needed.
  reader.read([](JournalDecoder&, std::uint64_t) {});
  offset_ = place_of_next_frame(reader, path, options_);
  sequence_ = reader.next_sequence();
  if (const int problem = file_->truncate(offset_)) {
    throw Error(format(
        "[format] the journal {} cannot be cut to its last frame: {}",
        path.string(),
        std::strerror(problem)));
  }
  pending_.add({now(), std::nullopt, JournalSession{std::move(description)}});
  start();
}

JournalWriter::JournalWriter(
    std::unique_ptr<JournalFile> file,
    std::uint64_t offset,
    std::uint64_t sequence,
    Options options)
    : options_(std::move(options)),
      file_(std::move(file)),
      offset_(offset),
      sequence_(sequence) {
  start();
}

void JournalWriter::start() {
  thread_ = std::thread([this] { run(); });
}

JournalWriter::~JournalWriter() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  work_.notify_all();
  thread_.join();
}

bool JournalWriter::is_full(std::size_t num_bytes) const {
  return pending_.num_bytes() + num_waiting_bytes_ + num_bytes >
      options_.most_waiting_bytes;
}

// The thread is also woken when there is enough to write.
bool JournalWriter::has_room(
    std::unique_lock<std::mutex>& lock,
    std::size_t num_bytes) {
  if (is_full(num_bytes) && !is_failing_ && pending_.num_bytes() > 0)
    await_write(lock);
  if (is_full(num_bytes) && is_failing_) {
    ++num_lost_;
    return false;
  }
  if (!is_failing_ && !is_wanted_ &&
      pending_.num_bytes() + num_bytes >= options_.early_bytes) {
    is_wanted_ = true;
    work_.notify_one();
  }
  return true;
}

void JournalWriter::log(
    std::span<const std::pair<std::string_view, double>> scalars,
    std::optional<std::int64_t> step,
    std::optional<double> time) {
  if (!time) time = now();
  std::unique_lock lock(mutex_);
  if (!has_room(lock, 32 * scalars.size())) return;
  ++num_pending_;
  pending_.begin_scalars(*time, step, scalars.size());
  for (const auto& [name, value] : scalars) pending_.add_scalar(name, value);
}

void JournalWriter::add(
    JournalEvent event,
    std::optional<std::int64_t> step,
    std::optional<double> time) {
  if (!time) time = now();
  const std::size_t size = event.body.size() + event.name.size() + 1024;
  if (size > kMostJournalFrameBytes / 2) {
    throw Error(format(
        "[format] \"{}\" has {} bytes, but a journal "
        "accepts at most {} at once",
        event.name,
        event.body.size(),
        kMostJournalFrameBytes / 2));
  }
  std::unique_lock lock(mutex_);
  // Keeps frames within their size limit.
  if (pending_.num_bytes() + size > kMostJournalFrameBytes) await_write(lock);
  if (!has_room(lock, size)) return;
  ++num_pending_;
  pending_.add({*time, step, std::move(event)});
}

void JournalWriter::rewind_to(std::int64_t step) {
  const double time = now();
  std::unique_lock lock(mutex_);
  if (has_room(lock, 32)) pending_.add({time, step, JournalRewind{}});
}

bool JournalWriter::flush() {
  std::unique_lock lock(mutex_);
  await_write(lock);
  return !is_failing_;
}

void JournalWriter::await_write(std::unique_lock<std::mutex>& lock) {
  // A write in progress may have begun before the last entries.
  const std::uint64_t wanted = num_begun_ + 1;
  is_wanted_ = true;
  work_.notify_one();
  written_.wait(lock, [&] { return num_ended_ >= wanted; });
}

void JournalWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait_for(
        lock, options_.interval, [&] { return is_ending_ || is_wanted_; });
    is_wanted_ = false;
    const bool is_last = is_ending_;
    write_pending(lock);
    if (is_last) break;
  }
  lock.unlock();
  report_losses();
}

// Waiting entries are now lost as well, since no writer is left.
void JournalWriter::report_losses() const {
  std::uint64_t num_waiting = 0;
  for (const Frame& each : frames_) num_waiting += each.num_logged;
  const std::uint64_t num_lost = num_lost_ + num_waiting;
  if (num_lost == 0 || !options_.report) return;
  options_.report(format(
      "{} of the {} entries that this process logged are not in the journal, "
      "since it could not be written",
      num_lost,
      num_written_ + num_lost));
}

void JournalWriter::note_losses() {
  if (num_lost_ == num_lost_noted_ || is_failing_) return;
  std::string text = format(
      "{} entries were lost while the journal could not be written",
      num_lost_ - num_lost_noted_);
  num_lost_noted_ = num_lost_;
  pending_.add(
      {now(),
       std::nullopt,
       JournalEvent{"warning", "journal", "text/plain", std::move(text)}});
}

// Frames belong to this thread; the lock protects what is pending.
void JournalWriter::write_pending(std::unique_lock<std::mutex>& lock) {
  ++num_begun_;
  note_losses();
  JournalEncoder encoder = std::exchange(pending_, {});
  const std::uint64_t num_logged = std::exchange(num_pending_, 0);
  lock.unlock();
  if (encoder.num_bytes() > 0)
    frames_.push_back({encoder.take_frame(sequence_++), num_logged});
  int problem = 0;
  while (problem == 0 && !frames_.empty()) {
    problem = write_frame(frames_.front().bytes);
    if (problem != 0) break;
    num_written_ += frames_.front().num_logged;
    frames_.pop_front();
  }
  std::size_t num_bytes = 0;
  for (const Frame& frame : frames_) num_bytes += frame.bytes.size();
  const bool was_failing = is_failing_;
  lock.lock();
  num_waiting_bytes_ = num_bytes;
  is_failing_ = problem != 0;
  lock.unlock();
  // Before flush() returns, so that a program that ends then has reported it.
  report(was_failing, problem);
  lock.lock();
  ++num_ended_;
  written_.notify_all();
}

void JournalWriter::report(bool was_failing, int problem) const {
  if (!options_.report || was_failing == (problem != 0)) return;
  options_.report(
      was_failing ? "the journal can be written again"
                  : format(
                        "the journal cannot be written: {}; training "
                        "continues, and logged entries wait in memory",
                        std::strerror(problem)));
}

int JournalWriter::write_frame(const std::string& frame) {
  int problem = file_->write_at(offset_, frame);
  if (problem == 0) problem = file_->sync();
  if (problem == 0) {
    offset_ += frame.size();
  } else {
    // Readers must not find half a frame; the next attempt writes it again.
    file_->truncate(offset_);
  }
  return problem;
}

}  // namespace accelerate::detail
