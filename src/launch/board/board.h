#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "base/machine/shared_segment.h"
#include "launch/board/board_page.h"

namespace accelerate::detail {

struct BoardOptions {
  int num_pages = 1;
  int first_rank = 0;
  int world_size = 1;
  int attempt = 0;
  int machine = 0;
  /// The command, shown in lists of what is running.
  std::string command = {};
  /// The name by which the process's boards are found; a different one for a
  /// board that is not about processes of this machine.
  const char* name = "accelerate-board";
};

/// Shared memory in which the ranks of one machine record what they do, one
/// page per local rank. Observers read it instead of asking a rank, which may
/// no longer respond. It has no name in a file system and disappears with the
/// last process that maps it.
class Board {
 public:
  /// Throws SegmentError if the system provides no memory.
  static Board create(const BoardOptions& options);
  /// Maps the board described by a ticket(). Throws SegmentError if this
  /// process may not map it, or if it has another version.
  static Board open(const std::string& ticket);
  /// Returns the boards created by `process` that this process may map.
  static std::vector<Board> of_process(pid_t process);

  [[nodiscard]] std::string ticket() const { return segment_.ticket(); }

  [[nodiscard]] const BoardHeader& header() const;
  /// The header, for the values that change while ranks run.
  [[nodiscard]] BoardHeader& shared_header() const;
  /// Adds a report for the ranks to read. Called by their monitor.
  void add_report(std::string_view text) const;
  [[nodiscard]] int num_pages() const { return header().num_pages; }
  /// `index`: the local rank; in an elastic group, the one in the first
  /// generation.
  [[nodiscard]] BoardPage& page(int index) const;
  /// Clears a page, except its seat. No process may be writing it.
  void clear_page(int index) const;

 private:
  explicit Board(SharedSegment segment) : segment_(std::move(segment)) {}

  static Board checked(SharedSegment segment);

  SharedSegment segment_;
};

/// Reads a board's reports as they are added.
class BoardReports {
 public:
  /// `board` must outlive this object. Earlier reports are skipped.
  explicit BoardReports(const Board& board);

  /// Returns the reports since the last call, except those that newer ones have
  /// replaced.
  std::vector<std::string> news();

 private:
  const Board& board_;
  std::uint64_t num_read_ = 0;
};

/// Copies as much of `text` as fits, zero-terminated.
template <std::size_t size>
void set_text(BoardText<size>& target, std::string_view text) {
  const std::size_t length = text.copy(target.data(), size - 1);
  target[length] = '\0';
}

/// Returns the characters of `text`; an unterminated text is read to the end of
/// its memory.
template <std::size_t size>
std::string text_of(const BoardText<size>& text) {
  const std::string_view all(text.data(), size);
  return std::string(all.substr(0, all.find('\0')));
}

}  // namespace accelerate::detail
