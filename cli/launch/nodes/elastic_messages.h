#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::cli {

/// The processes that one seat of an elastic group has had, as reported by
/// their machine's launcher.
struct SeatReport {
  int num_started = 0;
  int num_ended = 0;
  /// The newest process.
  int process = 0;
  /// The wait status of the newest process that has ended.
  int wait_status = 0;
  /// BoardSeat::process and BoardSeat::arrived.
  int announced = 0;
  std::uint32_t arrived = 0;
};

/// What a machine's launcher reports to machine 0.
struct MachineReport {
  /// Distinguishes launchers that occupied the machine's place one after
  /// another.
  std::int64_t launcher = 0;
  /// The launcher was told to end, and asks whether the others can continue
  /// without it.
  bool wants_to_leave = false;
  std::vector<SeatReport> seats = {};
};

/// What machine 0 has decided for a seat.
struct SeatOrders {
  /// Rank in the generation in force; -1 if none.
  int rank = -1;
  /// How many processes must have been started, the newest beginning in
  /// `first_generation`, and how many must have been killed.
  int num_started = 0;
  std::uint32_t first_generation = 1;
  int num_killed = 0;
};

/// What machine 0 has decided for a machine.
struct MachineOrders {
  /// The launcher to which the orders for seats apply; 0 if none.
  std::int64_t launcher = 0;
  /// Launchers up to this one no longer belong to the group.
  std::int64_t left_out = 0;
  /// The launcher up to which requests to leave were refused.
  std::int64_t refused = 0;
};

/// What machine 0 tells the launchers of all machines. Seats are listed machine
/// by machine.
struct GroupOrders {
  std::uint32_t generation = 0;
  /// BoardHeader::target and BoardHeader::wanted.
  std::uint32_t target = 0;
  std::uint32_t wanted = 0;
  int num_ranks = 0;
  std::vector<SeatOrders> seats = {};
  std::vector<MachineOrders> machines = {};
};

/// How a group ended.
struct GroupOutcome {
  int code = 0;
  int num_restarts_left = 0;
  /// The machine whose ranks failed first; -1 if the connection to machine 0
  /// was lost, as `reason` says.
  int machine = -1;
  /// The culprit, to be shown on the other machines.
  std::string reason = {};
};

std::string to_text(const MachineReport& report);
std::string to_text(const GroupOrders& orders);
std::string to_text(const GroupOutcome& outcome);
/// These throw DistributedError for anything else.
MachineReport parse_report(const std::string& text);
GroupOrders parse_orders(const std::string& text);
GroupOutcome parse_outcome(const std::string& text);

}  // namespace accelerate::cli
