#include "format/journal/journal_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "format/journal/journal_frame.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20U;

// Bytes that a writer may leave unfinished at the end; the next one may cut
// them off.
constexpr std::uint64_t kMostTornBytes =
    kJournalHeaderBytes + kMostJournalFrameBytes;

// Payloads that fail their checksums may total this many times the bytes that
// were read. Mere damage totals at most once.
constexpr std::uint64_t kMostFailures = 8;

[[noreturn]] void throw_unreadable(const std::filesystem::path& path) {
  throw Error(format(
      "[format] {} cannot be read: {}", path.string(), std::strerror(errno)));
}

// Returns the number of bytes read; fewer than requested at the end of the
// file.
std::size_t read_fully(
    int file,
    const std::filesystem::path& path,
    std::uint64_t offset,
    char* bytes,
    std::size_t num_bytes) {
  std::size_t done = 0;
  while (done < num_bytes) {
    const ssize_t count = ::pread(
        file,
        bytes + done,
        num_bytes - done,
        static_cast<off_t>(offset + done));
    if (count == 0) break;
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      throw_unreadable(path);
    }
  }
  return done;
}

}  // namespace

JournalReader::JournalReader(std::filesystem::path path)
    : path_(std::move(path)), file_(open_regular_file(path_, O_RDONLY)) {}

JournalReader::~JournalReader() { ::close(file_); }

JournalReader::State JournalReader::state() const {
  struct stat status {};
  if (::fstat(file_, &status) != 0) throw_unreadable(path_);
  return {
      static_cast<std::uint64_t>(std::max<off_t>(status.st_size, 0)),
      std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 +
          status.st_mtim.tv_nsec};
}

std::uint64_t JournalReader::size() const { return state().size; }

// Returns false if there is no more to read for now.
bool JournalReader::fill() {
  const std::size_t before = bytes_.size();
  const std::uint64_t size = this->size();
  if (size <= position_ + before) return false;
  const std::uint64_t num_left = size - position_ - before;
  const std::size_t missing = num_needed_ - std::min(num_needed_, before);
  const auto wanted = static_cast<std::size_t>(
      std::min<std::uint64_t>(std::max(missing, kBlock), num_left));
  bytes_.resize(before + wanted);
  const std::size_t count = read_fully(
      file_, path_, position_ + before, bytes_.data() + before, wanted);
  bytes_.resize(before + count);
  return count == wanted && count < num_left;
}

// Takes the frames in the bytes, and drops the bytes in which none can begin.
// The last bytes may be the beginning of a frame, unless `is_all` says that
// there are no more.
void JournalReader::take_frames(const TakeFrame& take, bool is_all) {
  std::string_view rest = bytes_;
  const auto pass = [&](std::size_t num) {
    rest.remove_prefix(num);
    position_ += num;
  };
  num_needed_ = 0;
  while (true) {
    const std::size_t at = find_journal_header(rest, 0);
    if (at == std::string_view::npos) {
      pass(rest.size() - std::min(rest.size(), kJournalHeaderBytes - 1));
      break;
    }
    pass(at);
    const JournalHeader header = *JournalHeader::read(rest);
    const std::string_view payload =
        rest.substr(kJournalHeaderBytes, header.num_bytes);
    if (payload.size() < header.num_bytes && !is_all) {
      num_needed_ = kJournalHeaderBytes + header.num_bytes;
      break;
    }
    if (!header.describes(payload)) {
      if (payload.size() < header.num_bytes) {
        incomplete_ = incomplete_.value_or(position_);
      } else {
        count_failure(payload.size());
      }
      pass(1);
      continue;
    }
    num_damaged_bytes_ += position_ - end_;
    next_sequence_ = header.sequence + 1;
    pass(kJournalHeaderBytes + payload.size());
    end_ = position_;
    incomplete_.reset();
    JournalDecoder decoder(payload);
    take(decoder, end_ - payload.size());
  }
  bytes_.erase(0, bytes_.size() - rest.size());
}

void JournalReader::count_failure(std::size_t num_bytes) {
  num_failed_bytes_ += num_bytes;
  if (num_failed_bytes_ <= kMostTornBytes + kMostFailures * (position_ - end_))
    return;
  throw Error(format(
      "[format] the journal {} cannot be read: from byte {} on, headers of its "
      "frames overlap",
      path_.string(),
      end_));
}

bool JournalReader::read(const TakeFrame& take, std::uint64_t most_bytes) {
  const State now = state();
  const std::uint64_t begin = position_;
  // Searching a long unfinished end for frames takes time.
  if (now == seen_ && now.size > end_ + kBlock) return false;
  bytes_.clear();
  num_failed_bytes_ = 0;
  num_needed_ = 0;
  incomplete_.reset();
  for (bool is_all = false; !is_all;) {
    is_all = !fill();
    take_frames(take, is_all);
    if (!is_all && position_ - begin >= most_bytes) {
      bytes_.clear();
      return true;
    }
  }
  end_at(now);
  return false;
}

void JournalReader::end_at(const State& seen) {
  bytes_.clear();
  bytes_.shrink_to_fit();
  seen_ = seen;
  // What did not form a frame may be replaced by one: a writer that opens the
  // journal cuts off what its predecessor left unfinished.
  if (seen.size <= end_ + kMostTornBytes) {
    position_ = end_;
  } else if (incomplete_) {
    position_ = *incomplete_;
  }
}

std::vector<JournalEntry> JournalReader::read() {
  std::vector<JournalEntry> entries;
  read([&](JournalDecoder& decoder, std::uint64_t) {
    while (decoder.next()) entries.push_back(decoder.entry());
  });
  return entries;
}

std::string JournalReader::read_bytes(
    std::uint64_t offset,
    std::size_t num_bytes) const {
  std::string bytes(num_bytes, '\0');
  bytes.resize(read_fully(file_, path_, offset, bytes.data(), num_bytes));
  return bytes;
}

}  // namespace accelerate::detail
