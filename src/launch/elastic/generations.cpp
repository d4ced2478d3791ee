#include "launch/elastic/generations.h"

#include <span>

namespace accelerate::detail {

Generations::Generations(const Board& board, Options options)
    : board_(board),
      options_(options),
      seats_(board, options.most, options.absent) {
  header().fewest_ranks.store(options_.fewest);
  header().most_ranks.store(options_.most);
  header().num_ranks.store(seats_.num_staying());
  header().target.store(current_);
  header().wanted.store(current_);
  header().generation.store(current_);
}

bool Generations::all_announced() const {
  return !has_finished_ && seats_.all_ranks_announced();
}

bool Generations::is_broken() const {
  return header().target.load() > current_;
}

bool Generations::is_changing() const {
  return header().wanted.load() > current_ || is_broken() ||
      seats_.has_any(State::joining);
}

bool Generations::has_failed() const {
  if (!is_broken()) return false;
  if (has_finished_) return true;
  return !late().empty();
}

std::vector<int> Generations::late() const {
  std::vector<int> seats;
  if (!is_broken() || std::chrono::steady_clock::now() <= deadline_)
    return seats;
  // Joining processes may take as long to start as any program.
  for (int seat = 0; seat < options_.most; ++seat) {
    if (seats_[seat].is_rank() && !seats_.has_arrived(seat, next()))
      seats.push_back(seat);
  }
  return seats;
}

bool Generations::take_restart() {
  if (*options_.num_restarts_left == 0) return false;
  --*options_.num_restarts_left;
  return true;
}

Generations::Loss Generations::replace_or_shrink(int seat, bool may_replace) {
  if (may_replace) {
    seats_[seat].state = State::joining;
    seats_[seat].replaces = true;
    return Loss::replaced;
  }
  return seats_.num_staying() >= options_.fewest ? Loss::smaller
                                                 : Loss::ends_group;
}

void Generations::break_generation() {
  if (is_broken()) return;
  is_paid_ = false;
  deadline_ = std::chrono::steady_clock::now() + options_.patience;
  header().wanted.store(next());
  header().target.store(next());
}

Generations::Loss Generations::lose(int seat, bool may_replace) {
  const SeatTable::Seat lost = seats_[seat];
  if (lost.state == State::departed || lost.state == State::empty) {
    seats_.vacate(seat);
    return Loss::harmless;
  }
  if (lost.state == State::joining) {
    seats_.vacate(seat);
    if (!lost.replaces) {
      // The group may have survived earlier losses only because this process
      // was to join.
      return is_broken() && seats_.num_staying() < options_.fewest
          ? Loss::ends_group
          : Loss::harmless;
    }
    return replace_or_shrink(seat, may_replace && take_restart());
  }
  if (!all_announced()) return Loss::ends_group;
  seats_.vacate(seat);
  break_generation();
  if (lost.state == State::leaving) return Loss::smaller;
  if (may_replace) is_paid_ = is_paid_ || take_restart();
  return replace_or_shrink(seat, may_replace && is_paid_);
}

Generations::Loss Generations::lose_machine(int first_seat, int num_seats) {
  Loss worst = Loss::harmless;
  for (int seat = first_seat; seat < first_seat + num_seats; ++seat) {
    const Loss loss = lose(seat, /*may_replace=*/false);
    if (loss == Loss::ends_group) return loss;
    if (loss != Loss::harmless) worst = loss;
  }
  if (is_broken()) is_paid_ = true;
  return worst;
}

bool Generations::join(int first_seat, int num_seats) {
  if (is_changing() || !all_announced()) return false;
  const std::span<SeatTable::Seat> joining =
      seats_.range(first_seat, num_seats);
  for (const SeatTable::Seat& seat : joining) {
    if (seat.state != State::empty) return false;
  }
  for (SeatTable::Seat& seat : joining) seat.state = State::joining;
  return true;
}

Generations::Leave Generations::leave(int first_seat, int num_seats) {
  const std::span<SeatTable::Seat> leaving =
      seats_.range(first_seat, num_seats);
  int num_leaving = 0;
  for (const SeatTable::Seat& seat : leaving) num_leaving += seat.is_staying();
  bool has_any_announced = false;
  for (int seat = 0; seat < options_.most; ++seat)
    has_any_announced = has_any_announced || seats_.has_announced(seat);
  if (seats_.num_staying() - num_leaving < options_.fewest || has_finished_ ||
      !has_any_announced)
    return Leave::refused;
  if (is_changing() || !all_announced()) return Leave::later;
  for (SeatTable::Seat& seat : leaving) {
    if (seat.state == State::member) seat.state = State::leaving;
  }
  header().wanted.store(next());
  return Leave::begun;
}

bool Generations::finish(int seat) {
  const State state = seats_[seat].state;
  has_finished_ = has_finished_ || state == State::member ||
      (state == State::joining && is_broken());
  seats_.vacate(seat);
  return state == State::leaving || state == State::departed;
}

int Generations::take_request() {
  // Processes that left most recently may still be ending, in seats that others
  // need.
  if (header().asked_ranks.load() == 0 || is_changing() ||
      seats_.has_any(State::departed) || !all_announced())
    return 0;
  const int asked = header().asked_ranks.exchange(0);
  const bool is_possible = asked >= options_.fewest && asked <= options_.most;
  return is_possible && asked != seats_.num_staying() ? asked : 0;
}

std::vector<int> Generations::resize(int num_ranks) {
  std::vector<int> started;
  const int num_more = num_ranks - seats_.num_staying();
  for (int seat = 0; seat < options_.most; ++seat) {
    SeatTable::Seat& own = seats_[seat];
    if (static_cast<int>(started.size()) >= num_more ||
        own.state != State::empty)
      continue;
    own.state = State::joining;
    started.push_back(seat);
  }
  int num_fewer = -num_more;
  for (int seat = options_.most; seat-- > 0 && num_fewer > 0;) {
    if (seats_[seat].state != State::member) continue;
    seats_[seat].state = State::leaving;
    --num_fewer;
  }
  if (num_more < 0) header().wanted.store(next());
  return started;
}

bool Generations::advance() {
  if (!is_changing()) return false;
  for (int seat = 0; seat < options_.most; ++seat) {
    if (seats_[seat].state == State::joining &&
        !seats_.has_arrived(seat, next()))
      return false;
  }
  // Joining processes are ready; only now do the others need to interrupt
  // themselves.
  header().wanted.store(next());
  for (int seat = 0; seat < options_.most; ++seat) {
    if (seats_[seat].is_rank() && !seats_.has_arrived(seat, next()))
      return false;
  }
  begin_next();
  return true;
}

void Generations::begin_next() {
  // All have left the generation, so no page is being written.
  const int count = seats_.begin_generation();
  ++current_;
  is_paid_ = false;
  header().num_ranks.store(count);
  header().wanted.store(current_);
  header().target.store(current_);
  header().generation.store(current_);
}

}  // namespace accelerate::detail
