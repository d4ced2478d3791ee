#include "launch/elastic/seat_table.h"

#include <algorithm>

namespace accelerate::detail {

SeatTable::SeatTable(
    const Board& board,
    int num_seats,
    const std::vector<int>& absent)
    : board_(board), seats_(static_cast<std::size_t>(num_seats)) {
  for (const int seat : absent) (*this)[seat].state = State::empty;
  number_ranks();
}

bool SeatTable::has_any(State state) const {
  return std::any_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
    return seat.state == state;
  });
}

int SeatTable::num_staying() const {
  return static_cast<int>(
      std::count_if(seats_.begin(), seats_.end(), [](const Seat& seat) {
        return seat.is_staying();
      }));
}

bool SeatTable::has_announced(int seat) const {
  const pid_t process = (*this)[seat].process;
  return process != 0 && on_board(seat).process.load() == process;
}

bool SeatTable::all_ranks_announced() const {
  for (int seat = 0; seat < size(); ++seat) {
    if ((*this)[seat].is_rank() && !has_announced(seat)) return false;
  }
  return true;
}

bool SeatTable::has_arrived(int seat, std::uint32_t generation) const {
  return has_announced(seat) && on_board(seat).arrived.load() >= generation;
}

void SeatTable::vacate(int seat) {
  (*this)[seat] = {.state = State::empty};
  on_board(seat).process.store(0);
  on_board(seat).arrived.store(0);
}

int SeatTable::begin_generation() {
  for (int seat = 0; seat < size(); ++seat) {
    Seat& own = (*this)[seat];
    board_.clear_page(seat);
    if (own.is_staying()) {
      own = {.state = State::member, .process = own.process};
    } else if (own.state == State::leaving) {
      own.state = State::departed;
    }
  }
  return number_ranks();
}

int SeatTable::number_ranks() {
  int count = 0;
  for (int seat = 0; seat < size(); ++seat)
    on_board(seat).rank.store((*this)[seat].is_rank() ? count++ : -1);
  return count;
}

}  // namespace accelerate::detail
