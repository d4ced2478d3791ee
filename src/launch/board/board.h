#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  /// For people who list what is running.
  std::string command = {};
  /// The name by which the process's boards are found; another one for a board
  /// that is not about processes of this machine.
  const char* name = "accelerate-board";
};

/// Pages of shared memory on which the ranks of one machine note what they do,
/// one page per local rank. Whoever wants to know reads it and need not ask a
/// rank, which may no longer answer. It has no name in a file system and is
/// gone with the last process that maps it.
class Board {
 public:
  /// Throws SegmentError if the system gives no memory.
  static Board create(const BoardOptions& options);
  /// Maps the board that ticket() described. Throws SegmentError if this
  /// process may not map it, or if it is another version's.
  static Board open(const std::string& ticket);
  /// The boards that `process` created, as far as this process may map them.
  static std::vector<Board> of_process(pid_t process);

  [[nodiscard]] std::string ticket() const { return segment_.ticket(); }

  [[nodiscard]] const BoardHeader& header() const;
  /// The same, for those of its values that change while ranks run.
  [[nodiscard]] BoardHeader& shared_header() const;
  /// Adds a report for the ranks to read. Called by whoever watches them.
  void add_report(std::string_view text) const;
  [[nodiscard]] int num_pages() const { return header().num_pages; }
  /// `index`: the local rank; in an elastic group, that of the first generation.
  [[nodiscard]] BoardPage& page(int index) const;
  /// Empties a page, but for its seat. Nobody may be writing it.
  void clear_page(int index) const;

 private:
  explicit Board(SharedSegment segment) : segment_(std::move(segment)) {}

  static Board checked(SharedSegment segment);

  SharedSegment segment_;
};

/// Reads the reports of a board as they come.
class BoardReports {
 public:
  /// `board` must outlive it. Reports from before are not news.
  explicit BoardReports(const Board& board);

  /// The reports since the last call, without those that newer ones have
  /// replaced meanwhile.
  std::vector<std::string> news();

 private:
  const Board& board_;
  std::uint64_t num_read_ = 0;
};

/// Copies as much of `text` as fits, ended by a zero.
template <std::size_t size>
void set_text(BoardText<size>& target, std::string_view text) {
  const std::size_t length = text.copy(target.data(), size - 1);
  target[length] = '\0';
}

/// The characters of `text`; a text without an end is read to the end of its
/// memory.
template <std::size_t size>
std::string text_of(const BoardText<size>& text) {
  const std::string_view all(text.data(), size);
  return std::string(all.substr(0, all.find('\0')));
}

}  // namespace accelerate::detail
