#include "format/journal/journal_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text.h"
#include "format/journal/journal_frame.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20U;

struct Frame {
  std::size_t begin;
  std::size_t size;  // with its header
  JournalHeader header;
};

// The first valid frame in the bytes. Nothing if there is none yet: what is
// there may be the beginning of one.
std::optional<Frame> first_frame(std::string_view bytes) {
  std::size_t at = find_journal_header(bytes, 0);
  while (at != std::string_view::npos) {
    const auto header = JournalHeader::read(bytes.substr(at));
    const std::string_view payload =
        bytes.substr(at + kJournalHeaderBytes, header->num_bytes);
    if (header->describes(payload))
      return Frame{at, kJournalHeaderBytes + payload.size(), *header};
    at = find_journal_header(bytes, at + 1);
  }
  return std::nullopt;
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

// Returns false at the end of the file.
bool JournalReader::fill() {
  const std::size_t before = bytes_.size();
  bytes_.resize(before + kBlock);
  ssize_t count = 0;
  do {
    count = ::pread(
        file_,
        bytes_.data() + before,
        kBlock,
        static_cast<off_t>(offset_ + before));
  } while (count < 0 && errno == EINTR);
  bytes_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0) {
    throw Error(format(
        "[format] {} cannot be read: {}",
        path_.string(),
        std::strerror(errno)));
  }
  return count > 0;
}

std::vector<JournalEntry> JournalReader::read() {
  // What did not make a frame may have been replaced by one since: a writer
  // that opens the journal cuts off what its predecessor left unfinished.
  bytes_.clear();
  while (fill()) {
  }
  std::vector<JournalEntry> entries;
  std::string_view rest = bytes_;
  while (const auto frame = first_frame(rest)) {
    num_damaged_bytes_ += frame->begin;
    std::vector<JournalEntry> added = read_journal_payload(rest.substr(
        frame->begin + kJournalHeaderBytes, frame->header.num_bytes));
    std::move(added.begin(), added.end(), std::back_inserter(entries));
    next_sequence_ = frame->header.sequence + 1;
    rest.remove_prefix(frame->begin + frame->size);
  }
  offset_ += bytes_.size() - rest.size();
  end_ = offset_;
  bytes_.clear();
  return entries;
}

}  // namespace accelerate::detail
