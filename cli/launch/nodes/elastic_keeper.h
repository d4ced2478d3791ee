#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "cli/launch/nodes/elastic_messages.h"
#include "launch/board/board.h"
#include "launch/elastic/generations.h"

namespace accelerate::cli {

/// Decides for an elastic group on several machines, on machine 0: takes
/// launchers' reports and makes orders. A machine joins, leaves or is lost with
/// all its seats; a rank that ends is replaced on its own machine. Does not
/// know about the store.
class ElasticKeeper {
 public:
  struct Options {
    int num_machines = 1;
    int seats_per_machine = 1;
    int fewest_ranks = 1;
    int num_restarts_left = 0;
    /// See Generations::Options. Late ranks are killed, since they may be
    /// waiting for a connection to a silent machine.
    std::chrono::milliseconds patience = std::chrono::seconds(30);
  };

  /// Begins with the machines that have a launcher (0 if none). Throws
  /// ConfigError if the system has no memory for it.
  ElasticKeeper(const Options& options, std::vector<std::int64_t> launchers);

  /// Takes a launcher's report.
  void take(int machine, MachineReport report);
  /// Notes that a machine's launcher is gone.
  void lose(int machine);
  /// Decides what follows from everything reported.
  void keep();

  /// Whether this launcher of the machine was admitted.
  [[nodiscard]] bool belongs(int machine, std::int64_t launcher) const {
    return launcher > 0 &&
        orders_.machines[static_cast<std::size_t>(machine)].launcher ==
        launcher;
  }
  [[nodiscard]] const GroupOrders& orders() const { return orders_; }
  /// Set once the group has ended; nothing is decided after that.
  [[nodiscard]] const std::optional<GroupOutcome>& outcome() const {
    return outcome_;
  }

 private:
  using Loss = detail::Generations::Loss;

  struct Machine {
    MachineReport report;
    bool is_leaving = false;
  };
  // Numbers of starts and ends of a seat that were acted upon.
  struct Seen {
    int started = 0;
    int ended = 0;
  };

  [[nodiscard]] int first_seat(int machine) const {
    return machine * options_.seats_per_machine;
  }
  [[nodiscard]] SeatOrders& orders_of(int seat) {
    return orders_.seats[static_cast<std::size_t>(seat)];
  }
  [[nodiscard]] MachineOrders& machine_orders(int machine) {
    return orders_.machines[static_cast<std::size_t>(machine)];
  }
  [[nodiscard]] Machine& at(int machine) {
    return machines_[static_cast<std::size_t>(machine)];
  }
  // Whether the seat has a process, or is about to.
  [[nodiscard]] bool has_process(int seat);
  [[nodiscard]] bool has_processes(int machine);
  static detail::Generations::Options generation_options(
      const Options& options,
      const std::vector<std::int64_t>& launchers,
      int* num_restarts_left);
  void take_in(int machine, std::int64_t launcher);
  void leave_out(int machine);
  void mirror(int machine);
  void keep_ends(int machine);
  void keep_membership(int machine);
  void keep_finish();
  void end_group(int machine, int code, std::string reason);
  void write_orders();

  Options options_;
  int num_restarts_left_;
  detail::Board board_;
  detail::Generations generations_;
  std::vector<Machine> machines_;
  std::vector<Seen> seen_;
  GroupOrders orders_;
  std::optional<GroupOutcome> outcome_;
  // The failure that last broke a generation.
  int failed_machine_ = 0;
  int failed_code_ = 1;
};

}  // namespace accelerate::cli
