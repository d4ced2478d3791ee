#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/types.h>

#include "launch/board/board.h"

namespace accelerate::detail {

/// The seats of an elastic group: who is in each, and what its page of the board
/// says about it.
class SeatTable {
 public:
  enum class State {
    empty,
    member,    ///< a rank
    leaving,   ///< a rank for as long as the generation lasts
    joining,   ///< a process that will be a rank of the next generation
    departed,  ///< a process that is no longer a rank
  };
  struct Seat {
    State state = State::member;
    pid_t process = 0;
    /// True for a joining process that replaces a dead one.
    bool replaces = false;

    [[nodiscard]] bool is_rank() const {
      return state == State::member || state == State::leaving;
    }
    /// True for a rank of the next generation.
    [[nodiscard]] bool is_staying() const {
      return state == State::member || state == State::joining;
    }
  };

  /// All seats but the absent ones have members.
  SeatTable(const Board& board, int num_seats, const std::vector<int>& absent);

  [[nodiscard]] int size() const { return static_cast<int>(seats_.size()); }
  [[nodiscard]] Seat& operator[](int seat) {
    return seats_[static_cast<std::size_t>(seat)];
  }
  [[nodiscard]] const Seat& operator[](int seat) const {
    return seats_[static_cast<std::size_t>(seat)];
  }
  [[nodiscard]] std::span<Seat> range(int first, int count) {
    return std::span(seats_).subspan(
        static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  [[nodiscard]] bool has_any(State state) const;
  [[nodiscard]] int num_staying() const;
  /// Whether the process that was started for a seat has opened its page.
  [[nodiscard]] bool has_announced(int seat) const;
  [[nodiscard]] bool all_ranks_announced() const;
  /// Whether the process of a seat waits for this generation, or a later one.
  [[nodiscard]] bool has_arrived(int seat, std::uint32_t generation) const;
  [[nodiscard]] int rank_of(int seat) const {
    return on_board(seat).rank.load();
  }

  void vacate(int seat);
  /// Makes those that stay the ranks, and clears all pages. Returns the number
  /// of ranks.
  int begin_generation();

 private:
  [[nodiscard]] BoardSeat& on_board(int seat) const {
    return board_.page(seat).seat;
  }
  int number_ranks();

  const Board& board_;
  std::vector<Seat> seats_;
};

}  // namespace accelerate::detail
