#include "launch/board/board.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// The header lies behind the bytes that identify the segment.
constexpr std::size_t kHeaderOffset = 64;
constexpr std::size_t kPagesOffset = 20480;
constexpr std::size_t kPageAlignment = 4096;
constexpr std::size_t kPageStride =
    (sizeof(BoardPage) + kPageAlignment - 1) / kPageAlignment * kPageAlignment;

static_assert(SharedSegment::kReservedBytes <= kHeaderOffset);
static_assert(kHeaderOffset + sizeof(BoardHeader) <= kPagesOffset);

std::size_t bytes_of(int num_pages) {
  return kPagesOffset + static_cast<std::size_t>(num_pages) * kPageStride;
}

BoardHeader& header_of(const SharedSegment& segment) {
  return *reinterpret_cast<BoardHeader*>(segment.data() + kHeaderOffset);
}

}  // namespace

Board Board::create(const BoardOptions& options) {
  SharedSegment segment =
      SharedSegment::create(bytes_of(options.num_pages), options.name);
  BoardHeader& header = header_of(segment);
  header.version = BoardHeader::kVersion;
  header.supervisor = ::getpid();
  header.num_pages = options.num_pages;
  header.first_rank = options.first_rank;
  header.world_size = options.world_size;
  header.attempt = options.attempt;
  header.machine = options.machine;
  header.started = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  set_text(header.command, options.command);
  return Board(std::move(segment));
}

Board Board::checked(SharedSegment segment) {
  const bool has_header = segment.size() >= kPagesOffset;
  const BoardHeader* const header = has_header ? &header_of(segment) : nullptr;
  if (header == nullptr || header->version != BoardHeader::kVersion ||
      header->num_pages < 0 || segment.size() != bytes_of(header->num_pages)) {
    throw SegmentError(
        "[launch] the launcher's board has another version; use the "
        "accelerate-cpp of the library that the program was linked with");
  }
  return Board(std::move(segment));
}

Board Board::open(const std::string& ticket) {
  return checked(SharedSegment::open(ticket));
}

std::vector<Board> Board::of_process(pid_t process) {
  namespace fs = std::filesystem;
  std::vector<Board> boards;
  const std::string wanted = format("/memfd:{} (deleted)", BoardOptions().name);
  std::error_code error;
  fs::directory_iterator files(format("/proc/{}/fd", process), error);
  for (; !error && files != fs::directory_iterator(); files.increment(error)) {
    std::error_code unreadable;
    const fs::path target = fs::read_symlink(files->path(), unreadable);
    if (unreadable || target.string() != wanted) continue;
    try {
      boards.push_back(checked(SharedSegment::open_file(files->path())));
    } catch (const SegmentError&) {
      // The board belongs to another user or version.
    }
  }
  return boards;
}

const BoardHeader& Board::header() const { return header_of(segment_); }

BoardHeader& Board::shared_header() const { return header_of(segment_); }

void Board::add_report(std::string_view text) const {
  BoardHeader& header = header_of(segment_);
  const std::uint64_t count = header.num_reports.load();
  set_text(header.reports[count % header.reports.size()], text);
  header.num_reports.store(count + 1);
}

BoardReports::BoardReports(const Board& board)
    : board_(board), num_read_(board.header().num_reports.load()) {}

std::vector<std::string> BoardReports::news() {
  const BoardHeader& header = board_.header();
  constexpr std::uint64_t kKept = BoardHeader::kKeptReports;
  std::vector<std::string> texts;
  const std::uint64_t count = header.num_reports.load();
  if (count > num_read_ + kKept) num_read_ = count - kKept;
  for (; num_read_ < count; ++num_read_) {
    std::string text =
        text_of(header.reports[num_read_ % header.reports.size()]);
    // It may have been replaced while it was read.
    if (header.num_reports.load() <= num_read_ + kKept)
      texts.push_back(std::move(text));
  }
  return texts;
}

BoardPage& Board::page(int index) const {
  return *reinterpret_cast<BoardPage*>(
      segment_.data() + kPagesOffset +
      static_cast<std::size_t>(index) * kPageStride);
}

void Board::clear_page(int index) const {
  // Zeroed memory is a valid page.
  std::memset(static_cast<void*>(&page(index)), 0, offsetof(BoardPage, seat));
}

}  // namespace accelerate::detail
