#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "cli/launch/nodes/elastic_messages.h"
#include "launch/board/board.h"
#include "launch/elastic/generations.h"

namespace accelerate::cli {

/// Decides for an elastic group on several machines, as machine 0: takes the
/// reports of launchers and makes orders. A machine joins with all its seats, and
/// leaves, or is lost, with all of them; a rank that ends is replaced on its own
/// machine. Knows nothing of the store.
class ElasticKeeper {
 public:
  struct Options {
    int num_machines = 1;
    int seats_per_machine = 1;
    int fewest_ranks = 1;
    int num_restarts_left = 0;
    /// See Generations::Options. Ranks that are late are killed, since what they
    /// wait for may be a connection to a machine that is silent.
    std::chrono::milliseconds patience = std::chrono::seconds(30);
  };

  /// Begins with the machines that have a launcher; 0: none. Throws ConfigError
  /// if the system gives no memory.
  ElasticKeeper(const Options& options, std::vector<std::int64_t> launchers);

  /// What a launcher tells.
  void take(int machine, MachineReport report);
  /// The launcher of a machine is gone.
  void lose(int machine);
  /// Decides what follows from all that was told.
  void keep();

  /// Whether this launcher of the machine was taken in.
  [[nodiscard]] bool belongs(int machine, std::int64_t launcher) const {
    return launcher > 0 &&
        orders_.machines[static_cast<std::size_t>(machine)].launcher ==
        launcher;
  }
  [[nodiscard]] const GroupOrders& orders() const { return orders_; }
  /// Set once the group has ended; it decides nothing more then.
  [[nodiscard]] const std::optional<GroupOutcome>& outcome() const {
    return outcome_;
  }

 private:
  using Loss = detail::Generations::Loss;

  struct Machine {
    MachineReport report;
    bool is_leaving = false;
  };
  // How many starts and ends of a seat were acted upon.
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
  // Whether a process is in the seat, or is about to be.
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
  // The failure that broke a generation last.
  int failed_machine_ = 0;
  int failed_code_ = 1;
};

}  // namespace accelerate::cli
