#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "format/journal/journal_entry.h"
#include "format/journal/journal_file.h"
#include "format/journal/journal_frame.h"

namespace accelerate::detail {

struct JournalWriterOptions {
  /// The longest time for which an entry is only in memory.
  std::chrono::milliseconds interval{500};
  /// Entries are written earlier once they take this many bytes.
  std::size_t early_bytes = std::size_t{1} << 20U;
  /// The most bytes of entries kept while the file cannot be written; entries
  /// logged beyond that are dropped and counted. If the file is merely too
  /// slow, callers wait instead.
  std::size_t most_waiting_bytes = std::size_t{64} << 20U;
  /// Receives a line when the file cannot be written, when it can be again, and
  /// at the end if anything was lost; called on the writer's thread, before
  /// flush() returns. Must not wait for the writer. Also receives, in the
  /// constructor, complaints about the end of a journal that is continued.
  std::function<void(const std::string& line)> report = {};
};

/// Appends to a journal. Entries are collected in memory and written by a
/// worker thread, which syncs the file: entries older than the interval survive
/// the death of the process and of the machine. A full disk stops nothing;
/// entries wait until there is room. Thread-safe.
class JournalWriter {
 public:
  using Options = JournalWriterOptions;
  using Clock = std::chrono::system_clock;

  /// Opens the journal, or creates it and its directory. Cuts off the frame that
  /// an earlier process left unfinished at the end, and nothing else: other
  /// bytes there are reported, and kept. `description`: JSON about this process.
  /// Throws Error, and changes nothing, if it cannot be opened, another process
  /// is writing it, another version wrote it, or it is not a journal.
  JournalWriter(
      const std::filesystem::path& path,
      std::string description,
      Options options = {});
  /// For tests: writes to a file that open_journal_file() opened.
  JournalWriter(
      std::unique_ptr<JournalFile> file,
      const std::filesystem::path& path,
      std::string description,
      Options options);
  /// For tests: writes to a file whose frames end at `offset`.
  JournalWriter(
      std::unique_ptr<JournalFile> file,
      std::uint64_t offset,
      std::uint64_t sequence,
      Options options);
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;
  /// Writes the pending entries.
  ~JournalWriter();

  /// Costs about as much as copying the names and values. `time` is when they
  /// were logged, in seconds since 1970; unset: now.
  void log(
      std::span<const std::pair<std::string_view, double>> scalars,
      std::optional<std::int64_t> step,
      std::optional<double> time = std::nullopt);
  /// Throws Error if the event is larger than a frame.
  void add(
      JournalEvent event,
      std::optional<std::int64_t> step,
      std::optional<double> time = std::nullopt);
  /// The run continues after `step`: figures of later steps are void.
  void rewind_to(std::int64_t step);

  /// Returns once all entries logged before are durable; false if they cannot
  /// be written now.
  bool flush();

 private:
  struct Frame {
    std::string bytes;
    std::uint64_t num_logged = 0;  // calls of log() and add()
  };

  void start();
  bool has_room(std::unique_lock<std::mutex>& lock, std::size_t num_bytes);
  [[nodiscard]] bool is_full(std::size_t num_bytes) const;
  void run();
  void await_write(std::unique_lock<std::mutex>& lock);
  void write_pending(std::unique_lock<std::mutex>& lock);
  void note_losses();
  void report(bool was_failing, int problem) const;
  void report_losses() const;
  int write_frame(const std::string& frame);

  Options options_;
  std::unique_ptr<JournalFile> file_;
  std::uint64_t offset_ = 0;       // the end of what is known to be in the file
  std::uint64_t sequence_ = 0;     // of the next frame
  std::deque<Frame> frames_;       // not written yet
  std::uint64_t num_written_ = 0;  // calls of log() and add()

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable written_;
  JournalEncoder pending_;
  std::size_t num_waiting_bytes_ = 0;  // of frames_
  std::uint64_t num_begun_ = 0;        // attempts to write
  std::uint64_t num_ended_ = 0;
  std::uint64_t num_pending_ = 0;  // calls of log() and add()
  std::uint64_t num_lost_ = 0;
  std::uint64_t num_lost_noted_ = 0;
  bool is_failing_ = false;
  bool is_wanted_ = false;  // write before the interval is over
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
