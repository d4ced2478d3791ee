#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::cli {

/// The processes that one seat of an elastic group has had, as the launcher of
/// their machine tells it.
struct SeatReport {
  int num_started = 0;
  int num_ended = 0;
  /// The newest process.
  int process = 0;
  /// The wait status of the newest that has ended.
  int wait_status = 0;
  /// BoardSeat::process and BoardSeat::arrived.
  int announced = 0;
  std::uint32_t arrived = 0;
};

/// What the launcher of a machine tells machine 0.
struct MachineReport {
  /// Tells launchers apart that have had the machine's place one after the other.
  std::int64_t launcher = 0;
  /// It was told to end, and asks whether the others can go on without it.
  bool wants_to_leave = false;
  std::vector<SeatReport> seats = {};
};

/// What machine 0 has decided for a seat.
struct SeatOrders {
  /// In the generation in force; -1: none.
  int rank = -1;
  /// How many processes are to have been started, the newest of them beginning
  /// in this generation, and how many are to have been killed.
  int num_started = 0;
  std::uint32_t first_generation = 1;
  int num_killed = 0;
};

/// What machine 0 has decided for a machine.
struct MachineOrders {
  /// The launcher to which the orders for seats are given; 0: none.
  std::int64_t launcher = 0;
  /// Launchers up to this one do not belong to the group any more.
  std::int64_t left_out = 0;
  /// The launcher up to which a wish to leave was refused.
  std::int64_t refused = 0;
};

/// What machine 0 tells the launchers of all machines. The seats are those of one
/// machine after the other.
struct GroupOrders {
  std::uint32_t generation = 0;
  /// BoardHeader::target and BoardHeader::wanted.
  std::uint32_t target = 0;
  std::uint32_t wanted = 0;
  int num_ranks = 0;
  std::vector<SeatOrders> seats = {};
  std::vector<MachineOrders> machines = {};
};

/// How a group has ended.
struct GroupOutcome {
  int code = 0;
  int num_restarts_left = 0;
  /// The machine whose ranks failed first; -1: the connection to machine 0 is
  /// lost, as `reason` says.
  int machine = -1;
  /// The culprit, for people on the other machines.
  std::string reason = {};
};

std::string to_text(const MachineReport& report);
std::string to_text(const GroupOrders& orders);
std::string to_text(const GroupOutcome& outcome);
/// Throw DistributedError for anything else.
MachineReport parse_report(const std::string& text);
GroupOrders parse_orders(const std::string& text);
GroupOutcome parse_outcome(const std::string& text);

}  // namespace accelerate::cli
