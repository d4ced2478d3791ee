#include "format/journal/journal_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/journal/journal_frame.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20U;

struct Frame {
  std::size_t begin;
  std::size_t size;  // with its header
  JournalHeader header;
};

// The first valid frame in the bytes. Nothing if there is none yet: the bytes
// may be the beginning of one, unless `is_all` says that there are no more.
std::optional<Frame> first_frame(std::string_view bytes, bool is_all) {
  std::size_t at = find_journal_header(bytes, 0);
  while (at != std::string_view::npos) {
    const auto header = JournalHeader::read(bytes.substr(at));
    const std::string_view payload =
        bytes.substr(at + kJournalHeaderBytes, header->num_bytes);
    if (payload.size() < header->num_bytes && !is_all) return std::nullopt;
    if (header->describes(payload))
      return Frame{at, kJournalHeaderBytes + payload.size(), *header};
    at = find_journal_header(bytes, at + 1);
  }
  return std::nullopt;
}

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
    : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) {
    throw Error(format(
        "[format] {} cannot be opened: {}",
        path_.string(),
        std::strerror(errno)));
  }
}

JournalReader::~JournalReader() { ::close(file_); }

// Returns false if there is no more to read for now. Each call doubles the
// bytes held, so that a frame, or damage, of any size is scanned only a few
// times.
bool JournalReader::fill() {
  const std::size_t before = bytes_.size();
  struct stat status {};
  if (::fstat(file_, &status) != 0) throw_unreadable(path_);
  const std::uint64_t size =
      static_cast<std::uint64_t>(std::max<off_t>(status.st_size, 0));
  if (size <= offset_ + before) return false;
  const std::uint64_t num_left = size - offset_ - before;
  const std::size_t wanted = static_cast<std::size_t>(
      std::min<std::uint64_t>(std::max(before, kBlock), num_left));
  bytes_.resize(before + wanted);
  const std::size_t count = read_fully(
      file_, path_, offset_ + before, bytes_.data() + before, wanted);
  bytes_.resize(before + count);
  return count == wanted && count < num_left;
}

void JournalReader::take_frame(
    std::string_view payload,
    const TakeFrame& take) {
  JournalDecoder decoder(payload);
  take(decoder, end_ - payload.size());
}

void JournalReader::read(const TakeFrame& take) {
  // Bytes that did not form a frame may have been replaced by one since: a
  // writer that opens the journal cuts off what its predecessor left
  // unfinished.
  bytes_.clear();
  for (bool is_all = false; !is_all;) {
    is_all = !fill();
    std::string_view rest = bytes_;
    while (const auto frame = first_frame(rest, is_all)) {
      num_damaged_bytes_ += frame->begin;
      next_sequence_ = frame->header.sequence + 1;
      offset_ += frame->begin + frame->size;
      end_ = offset_;
      rest.remove_prefix(frame->begin);
      take_frame(
          rest.substr(kJournalHeaderBytes, frame->header.num_bytes), take);
      rest.remove_prefix(frame->size);
    }
    bytes_.erase(0, bytes_.size() - rest.size());
  }
  bytes_.clear();
  bytes_.shrink_to_fit();
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
