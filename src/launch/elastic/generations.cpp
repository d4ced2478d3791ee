#include "launch/elastic/generations.h"

#include <algorithm>

namespace accelerate::detail {

Generations::Generations(const Board& board, Options options)
    : board_(board),
      options_(options),
      seats_(static_cast<std::size_t>(options.most)) {
  for (const int seat : options_.absent)
    seats_[static_cast<std::size_t>(seat)].state = State::empty;
  int count = 0;
  for (int seat = 0; seat < options_.most; ++seat) {
    const bool is_rank =
        seats_[static_cast<std::size_t>(seat)].state == State::member;
    on_board(seat).rank.store(is_rank ? count++ : -1);
  }
  header().fewest_ranks.store(options_.fewest);
  header().most_ranks.store(options_.most);
  header().num_ranks.store(count);
  header().target.store(current_);
  header().wanted.store(current_);
  header().generation.store(current_);
}

void Generations::add(int seat, pid_t process) {
  seats_[static_cast<std::size_t>(seat)].process = process;
}

bool Generations::has_announced(int seat) const {
  const Seat& own = seats_[static_cast<std::size_t>(seat)];
  return own.process != 0 && on_board(seat).process.load() == own.process;
}

bool Generations::has_arrived(int seat) const {
  return has_announced(seat) && on_board(seat).arrived.load() >= next();
}

bool Generations::all_announced() const {
  for (int seat = 0; seat < options_.most; ++seat) {
    const State state = seats_[static_cast<std::size_t>(seat)].state;
    const bool is_rank = state == State::member || state == State::leaving;
    if (is_rank && !has_announced(seat)) return false;
  }
  return !has_finished_;
}

bool Generations::is_broken() const {
  return header().target.load() > current_;
}

bool Generations::is_changing() const {
  return header().wanted.load() > current_ || is_broken() ||
      std::ranges::any_of(seats_, [](const Seat& seat) {
           return seat.state == State::joining;
         });
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
    const State state = seats_[static_cast<std::size_t>(seat)].state;
    const bool is_rank = state == State::member || state == State::leaving;
    if (is_rank && !has_arrived(seat)) seats.push_back(seat);
  }
  return seats;
}

int Generations::num_ranks() const { return header().num_ranks.load(); }

int Generations::rank_of(int seat) const { return on_board(seat).rank.load(); }

int Generations::num_staying() const {
  return static_cast<int>(std::ranges::count_if(seats_, [](const Seat& seat) {
    return seat.state == State::member || seat.state == State::joining;
  }));
}

bool Generations::take_restart() {
  if (*options_.num_restarts_left == 0) return false;
  --*options_.num_restarts_left;
  return true;
}

void Generations::vacate(int seat) {
  seats_[static_cast<std::size_t>(seat)] = {.state = State::empty};
  on_board(seat).process.store(0);
  on_board(seat).arrived.store(0);
}

Generations::Loss Generations::replace_or_shrink(int seat, bool may_replace) {
  if (may_replace) {
    Seat& own = seats_[static_cast<std::size_t>(seat)];
    own.state = State::joining;
    own.replaces = true;
    return Loss::replaced;
  }
  return num_staying() >= options_.fewest ? Loss::smaller : Loss::ends_group;
}

void Generations::break_generation() {
  if (is_broken()) return;
  is_paid_ = false;
  deadline_ = std::chrono::steady_clock::now() + options_.patience;
  header().wanted.store(next());
  header().target.store(next());
}

Generations::Loss Generations::lose(int seat, bool may_replace) {
  const Seat lost = seats_[static_cast<std::size_t>(seat)];
  if (lost.state == State::departed || lost.state == State::empty) {
    vacate(seat);
    return Loss::harmless;
  }
  if (lost.state == State::joining) {
    vacate(seat);
    if (!lost.replaces) {
      // The group may have survived earlier losses only because this process
      // was to join.
      return is_broken() && num_staying() < options_.fewest ? Loss::ends_group
                                                            : Loss::harmless;
    }
    return replace_or_shrink(seat, may_replace && take_restart());
  }
  if (!all_announced()) return Loss::ends_group;
  vacate(seat);
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
  const auto begin = seats_.begin() + first_seat;
  const bool is_free =
      std::all_of(begin, begin + num_seats, [](const Seat& seat) {
        return seat.state == State::empty;
      });
  if (!is_free) return false;
  std::for_each(begin, begin + num_seats, [](Seat& seat) {
    seat.state = State::joining;
  });
  return true;
}

Generations::Leave Generations::leave(int first_seat, int num_seats) {
  const auto begin = seats_.begin() + first_seat;
  const auto num_leaving = static_cast<int>(
      std::count_if(begin, begin + num_seats, [](const Seat& seat) {
        return seat.state == State::member || seat.state == State::joining;
      }));
  bool has_any_announced = false;
  for (int seat = 0; seat < options_.most; ++seat)
    has_any_announced = has_any_announced || has_announced(seat);
  if (num_staying() - num_leaving < options_.fewest || has_finished_ ||
      !has_any_announced)
    return Leave::refused;
  if (is_changing() || !all_announced()) return Leave::later;
  std::for_each(begin, begin + num_seats, [](Seat& seat) {
    if (seat.state == State::member) seat.state = State::leaving;
  });
  header().wanted.store(next());
  return Leave::begun;
}

bool Generations::finish(int seat) {
  const State state = seats_[static_cast<std::size_t>(seat)].state;
  has_finished_ = has_finished_ || state == State::member ||
      (state == State::joining && is_broken());
  vacate(seat);
  return state == State::leaving || state == State::departed;
}

int Generations::take_request() {
  // Processes that left most recently may still be ending, in seats that others
  // need.
  const bool has_departed = std::ranges::any_of(
      seats_, [](const Seat& seat) { return seat.state == State::departed; });
  if (header().asked_ranks.load() == 0 || is_changing() || has_departed ||
      !all_announced())
    return 0;
  const int asked = header().asked_ranks.exchange(0);
  const bool is_possible = asked >= options_.fewest && asked <= options_.most;
  return is_possible && asked != num_staying() ? asked : 0;
}

std::vector<int> Generations::resize(int num_ranks) {
  std::vector<int> started;
  const int num_more = num_ranks - num_staying();
  for (int seat = 0; seat < options_.most; ++seat) {
    Seat& own = seats_[static_cast<std::size_t>(seat)];
    if (static_cast<int>(started.size()) >= num_more ||
        own.state != State::empty)
      continue;
    own.state = State::joining;
    started.push_back(seat);
  }
  int num_fewer = -num_more;
  for (auto own = seats_.rbegin(); own != seats_.rend(); ++own) {
    if (num_fewer <= 0 || own->state != State::member) continue;
    own->state = State::leaving;
    --num_fewer;
  }
  if (num_more < 0) header().wanted.store(next());
  return started;
}

bool Generations::advance() {
  if (!is_changing()) return false;
  for (int seat = 0; seat < options_.most; ++seat) {
    const State state = seats_[static_cast<std::size_t>(seat)].state;
    if (state == State::joining && !has_arrived(seat)) return false;
  }
  // Joining processes are ready; only now do the others need to interrupt
  // themselves.
  header().wanted.store(next());
  for (int seat = 0; seat < options_.most; ++seat) {
    const State state = seats_[static_cast<std::size_t>(seat)].state;
    const bool is_rank = state == State::member || state == State::leaving;
    if (is_rank && !has_arrived(seat)) return false;
  }
  begin_next();
  return true;
}

void Generations::begin_next() {
  int count = 0;
  for (int seat = 0; seat < options_.most; ++seat) {
    Seat& own = seats_[static_cast<std::size_t>(seat)];
    // All have left the generation, so no page is being written.
    board_.clear_page(seat);
    if (own.state == State::member || own.state == State::joining) {
      own = {.state = State::member, .process = own.process};
      on_board(seat).rank.store(count++);
    } else {
      if (own.state == State::leaving) own.state = State::departed;
      on_board(seat).rank.store(-1);
    }
  }
  ++current_;
  is_paid_ = false;
  header().num_ranks.store(count);
  header().wanted.store(current_);
  header().target.store(current_);
  header().generation.store(current_);
}

}  // namespace accelerate::detail
