#include "cli/launch/nodes/elastic_member.h"

#include <algorithm>

#include <sys/eventfd.h>
#include <unistd.h>

namespace accelerate::cli {

ElasticMember::ElasticMember(int machine, int num_seats, std::int64_t launcher)
    : machine_(machine),
      num_seats_(num_seats),
      news_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      num_killed_(static_cast<std::size_t>(num_seats)) {
  told_.launcher = launcher;
  told_.seats.resize(static_cast<std::size_t>(num_seats));
  publish();
}

ElasticMember::~ElasticMember() { ::close(news_); }

void ElasticMember::use_board(const detail::Board& board) { board_ = &board; }

void ElasticMember::note_start(int seat, pid_t process) {
  SeatReport& own = told_.seats[static_cast<std::size_t>(seat)];
  ++own.num_started;
  own.process = process;
  publish();
}

void ElasticMember::note_end(int seat, int wait_status) {
  SeatReport& own = told_.seats[static_cast<std::size_t>(seat)];
  ++own.num_ended;
  own.wait_status = wait_status;
  publish();
}

void ElasticMember::ask_to_leave() {
  told_.wants_to_leave = true;
  publish();
}

void ElasticMember::publish() {
  std::string report = to_text(told_);
  const std::lock_guard lock(mutex_);
  if (report == report_) return;
  report_ = std::move(report);
  ++num_reports_;
}

ElasticMember::Orders ElasticMember::exchange() {
  std::uint64_t ignored = 0;
  (void)!::read(news_, &ignored, sizeof ignored);
  GroupOrders orders;
  {
    const std::lock_guard lock(mutex_);
    orders = orders_;
  }
  Orders due;
  if (board_ == nullptr || !belongs()) return due;
  detail::BoardHeader& header = board_->shared_header();
  const std::uint32_t before = header.generation.load();
  due.has_begun = orders.generation > before;
  const auto first = static_cast<std::size_t>(machine_ * num_seats_);
  for (int seat = 0; seat < num_seats_; ++seat) {
    const auto i = static_cast<std::size_t>(seat);
    const SeatOrders& own = orders.seats[first + i];
    detail::BoardSeat& page = board_->page(seat).seat;
    if (due.has_begun) {
      // No process writes pages now: all have left the generation.
      if (before > 0) board_->clear_page(seat);
      page.rank.store(own.rank);
    }
    SeatReport& told = told_.seats[i];
    if (own.num_started > told.num_started)
      due.starts.emplace_back(seat, own.first_generation);
    if (own.num_killed > num_killed_[i]) {
      num_killed_[i] = own.num_killed;
      if (told.num_ended < own.num_killed) due.kills.push_back(seat);
    }
    told.arrived = page.arrived.load();
    told.announced = page.process.load();
  }
  if (due.has_begun) header.num_ranks.store(orders.num_ranks);
  header.wanted.store(orders.wanted);
  header.target.store(orders.target);
  header.generation.store(orders.generation);
  publish();
  return due;
}

bool ElasticMember::is_changing() const {
  const std::lock_guard lock(mutex_);
  if (orders_.seats.empty() || told_.wants_to_leave ||
      orders_.wanted > orders_.generation)
    return true;
  const auto first = static_cast<std::size_t>(machine_ * num_seats_);
  for (std::size_t i = 0; i < told_.seats.size(); ++i) {
    const SeatReport& told = told_.seats[i];
    const SeatOrders& own = orders_.seats[first + i];
    // A joining process arrives before the others are told to make room.
    const bool joins = told.num_started > told.num_ended &&
        own.first_generation > orders_.generation;
    if (joins || own.num_started > told.num_started) return true;
  }
  return false;
}

bool ElasticMember::is_starting() const {
  return std::ranges::any_of(told_.seats, [](const SeatReport& told) {
    return told.num_started > told.num_ended && told.announced != told.process;
  });
}

int ElasticMember::rank_of(int seat) const {
  const std::lock_guard lock(mutex_);
  return orders_.seats
      .at(static_cast<std::size_t>(machine_ * num_seats_ + seat))
      .rank;
}

int ElasticMember::num_ranks() const {
  const std::lock_guard lock(mutex_);
  return orders_.num_ranks;
}

MachineOrders ElasticMember::own_orders() const {
  const std::lock_guard lock(mutex_);
  return orders_.machines.empty()
      ? MachineOrders{}
      : orders_.machines.at(static_cast<std::size_t>(machine_));
}

bool ElasticMember::belongs() const {
  return own_orders().launcher == told_.launcher;
}

bool ElasticMember::is_left_out() const {
  return own_orders().left_out >= told_.launcher;
}

bool ElasticMember::is_refused() const {
  return own_orders().refused >= told_.launcher;
}

std::optional<GroupOutcome> ElasticMember::outcome() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

std::string ElasticMember::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

std::int64_t ElasticMember::num_reports() const {
  const std::lock_guard lock(mutex_);
  return num_reports_;
}

void ElasticMember::hear(GroupOrders orders) {
  {
    const std::lock_guard lock(mutex_);
    orders_ = std::move(orders);
  }
  wake();
}

void ElasticMember::hear_outcome(GroupOutcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(outcome);
  }
  wake();
}

void ElasticMember::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(news_, &one, sizeof one);
}

}  // namespace accelerate::cli
