#include "cli/launch/nodes/elastic_keeper.h"

#include <string>
#include <utility>

#include <accelerate/error.h>

#include "base/machine/shared_segment.h"
#include "base/text/text.h"
#include "launch/processes/exit_reason.h"

namespace accelerate::cli {

namespace {

using detail::format;
using detail::Generations;

detail::Board make_board(int num_seats) {
  try {
    return detail::Board::create(
        {.num_pages = num_seats,
         .world_size = num_seats,
         .name = "accelerate-seats"});
  } catch (const detail::SegmentError& error) {
    throw ConfigError(format(
        "[launch] an elastic group needs memory that its ranks share with the "
        "launcher: {}",
        error.what()));
  }
}

}  // namespace

Generations::Options ElasticKeeper::generation_options(
    const Options& options,
    const std::vector<std::int64_t>& launchers,
    int* num_restarts_left) {
  Generations::Options made{
      .fewest = options.fewest_ranks,
      .most = options.num_machines * options.seats_per_machine,
      .num_restarts_left = num_restarts_left,
      .patience = options.patience};
  for (int seat = 0; seat < made.most; ++seat) {
    const int machine = seat / options.seats_per_machine;
    if (launchers[static_cast<std::size_t>(machine)] == 0)
      made.absent.push_back(seat);
  }
  return made;
}

ElasticKeeper::ElasticKeeper(
    const Options& options,
    std::vector<std::int64_t> launchers)
    : options_(options),
      num_restarts_left_(options.num_restarts_left),
      board_(make_board(options.num_machines * options.seats_per_machine)),
      generations_(
          board_,
          generation_options(options, launchers, &num_restarts_left_)),
      machines_(static_cast<std::size_t>(options.num_machines)) {
  const auto num_seats = static_cast<std::size_t>(board_.num_pages());
  seen_.resize(num_seats);
  orders_.seats.resize(num_seats);
  orders_.machines.resize(machines_.size());
  for (int machine = 0; machine < options_.num_machines; ++machine) {
    const std::int64_t launcher = launchers[static_cast<std::size_t>(machine)];
    if (launcher > 0) take_in(machine, launcher);
  }
  write_orders();
}

// A process must be started in each seat.
void ElasticKeeper::take_in(int machine, std::int64_t launcher) {
  machine_orders(machine).launcher = launcher;
  at(machine).is_leaving = false;
  const std::uint32_t generation =
      orders_.generation == 0 ? 1 : generations_.next();
  for (int i = 0; i < options_.seats_per_machine; ++i) {
    const int seat = first_seat(machine) + i;
    seen_[static_cast<std::size_t>(seat)] = {};
    SeatOrders& own = orders_of(seat);
    own.num_started = 1;
    own.num_killed = 0;
    own.first_generation = generation;
  }
}

void ElasticKeeper::leave_out(int machine) {
  MachineOrders& own = machine_orders(machine);
  own.left_out = std::exchange(own.launcher, 0);
}

void ElasticKeeper::take(int machine, MachineReport report) {
  const MachineOrders& own = machine_orders(machine);
  if (report.launcher <= own.left_out) return;
  if (own.launcher != 0 && report.launcher != own.launcher) lose(machine);
  report.seats.resize(static_cast<std::size_t>(options_.seats_per_machine));
  at(machine).report = std::move(report);
}

void ElasticKeeper::lose(int machine) {
  if (outcome_) return;
  at(machine).report = {};
  if (machine_orders(machine).launcher == 0) return;
  leave_out(machine);
  const Loss loss = generations_.lose_machine(
      first_seat(machine), options_.seats_per_machine);
  failed_machine_ = machine;
  failed_code_ = 1;
  if (loss == Loss::ends_group)
    end_group(
        machine, 1, format("machine {}, whose launcher is gone,", machine));
}

void ElasticKeeper::mirror(int machine) {
  if (machine_orders(machine).launcher == 0) return;
  const MachineReport& report = at(machine).report;
  for (int i = 0; i < static_cast<int>(report.seats.size()); ++i) {
    const int seat = first_seat(machine) + i;
    const SeatReport& told = report.seats[static_cast<std::size_t>(i)];
    Seen& seen = seen_[static_cast<std::size_t>(seat)];
    if (told.num_started > seen.started) {
      seen.started = told.num_started;
      generations_.add(seat, told.process);
    }
    detail::BoardSeat& page = board_.page(seat).seat;
    page.arrived.store(told.arrived);
    page.process.store(told.announced);
  }
}

void ElasticKeeper::keep_ends(int machine) {
  if (machine_orders(machine).launcher == 0) return;
  const MachineReport& report = at(machine).report;
  for (int i = 0; i < static_cast<int>(report.seats.size()); ++i) {
    const int seat = first_seat(machine) + i;
    const SeatReport& told = report.seats[static_cast<std::size_t>(i)];
    Seen& seen = seen_[static_cast<std::size_t>(seat)];
    if (told.num_ended <= seen.ended) continue;
    seen.ended = told.num_ended;
    if (told.wait_status == 0) {
      generations_.finish(seat);
      continue;
    }
    failed_machine_ = machine;
    failed_code_ = detail::exit_code_of(told.wait_status);
    switch (generations_.lose(seat)) {
      case Loss::ends_group:
        return end_group(
            machine, failed_code_, format("ranks on machine {}", machine));
      case Loss::replaced:
        ++orders_of(seat).num_started;
        orders_of(seat).first_generation = generations_.next();
        break;
      case Loss::smaller:
      case Loss::harmless:
        break;
    }
  }
}

bool ElasticKeeper::has_process(int seat) {
  return orders_of(seat).num_started >
      seen_[static_cast<std::size_t>(seat)].ended;
}

bool ElasticKeeper::has_processes(int machine) {
  for (int i = 0; i < options_.seats_per_machine; ++i) {
    if (has_process(first_seat(machine) + i)) return true;
  }
  return false;
}

void ElasticKeeper::keep_membership(int machine) {
  Machine& own = at(machine);
  MachineOrders& orders = machine_orders(machine);
  const std::int64_t launcher = own.report.launcher;
  if (orders.launcher == 0) {
    if (launcher > orders.left_out &&
        generations_.join(first_seat(machine), options_.seats_per_machine))
      take_in(machine, launcher);
    return;
  }
  // Machine 0 keeps the store, and waits for the other machines.
  if (machine != 0 && !generations_.has_finished() && !has_processes(machine))
    return leave_out(machine);
  if (!own.report.wants_to_leave || own.is_leaving ||
      orders.refused == launcher || generations_.has_finished())
    return;
  switch (generations_.leave(first_seat(machine), options_.seats_per_machine)) {
    case Generations::Leave::begun:
      own.is_leaving = true;
      break;
    case Generations::Leave::refused:
      orders.refused = launcher;
      break;
    case Generations::Leave::later:
      break;
  }
}

void ElasticKeeper::keep() {
  if (outcome_) return;
  for (int machine = 0; machine < options_.num_machines; ++machine)
    mirror(machine);
  for (int machine = 0; machine < options_.num_machines && !outcome_; ++machine)
    keep_ends(machine);
  if (outcome_) return;
  for (int machine = 0; machine < options_.num_machines; ++machine)
    keep_membership(machine);
  for (const int seat : generations_.late())
    orders_of(seat).num_killed = orders_of(seat).num_started;
  if (generations_.has_finished()) {
    keep_finish();
  } else {
    generations_.advance();
  }
  write_orders();
}

// A rank has finished, so the others are about to. Processes that were about to
// join are too late.
void ElasticKeeper::keep_finish() {
  for (int seat = 0; seat < board_.num_pages(); ++seat) {
    const int machine = seat / options_.seats_per_machine;
    if (machine_orders(machine).launcher == 0 ||
        generations_.rank_of(seat) < 0 || !has_process(seat))
      continue;
    if (!generations_.has_failed()) return;
    return end_group(
        failed_machine_,
        failed_code_,
        format("ranks on machine {}", failed_machine_));
  }
  outcome_ = GroupOutcome{.num_restarts_left = num_restarts_left_};
}

void ElasticKeeper::end_group(int machine, int code, std::string reason) {
  outcome_ = GroupOutcome{
      .code = code,
      .num_restarts_left = num_restarts_left_,
      .machine = machine,
      .reason = std::move(reason)};
}

void ElasticKeeper::write_orders() {
  const detail::BoardHeader& header = board_.header();
  orders_.generation = header.generation.load();
  orders_.target = header.target.load();
  orders_.wanted = header.wanted.load();
  orders_.num_ranks = header.num_ranks.load();
  for (int seat = 0; seat < board_.num_pages(); ++seat)
    orders_of(seat).rank = generations_.rank_of(seat);
}

}  // namespace accelerate::cli
