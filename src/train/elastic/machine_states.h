#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <accelerate/checkpoint.h>
#include <accelerate/world.h>

#include "train/elastic/machine_holdings.h"
#include "train/elastic/memory_states.h"
#include "train/elastic/whole_states.h"

namespace accelerate {
class Accelerator;
}

namespace accelerate::detail {

/// The states that several machines keep in memory, in parts and copies of them
/// (see MachineHoldings). A state is complete once every part and every copy is;
/// until then the previous state is kept.
///
/// Where machines may join and leave, states kept by other machines, or by a
/// different number of them, can also be loaded; see WholeStates.
///
/// Made and used by all ranks in the same order.
class MachineStates {
 public:
  /// `memory`: a directory in this machine's memory. `may_change`: whether
  /// machines may join and leave; otherwise, states of other machines are left
  /// alone. Collective.
  MachineStates(
      const World& world,
      const std::filesystem::path& memory,
      bool may_change = false);
  MachineStates(const MachineStates&) = delete;
  MachineStates& operator=(const MachineStates&) = delete;
  /// Waits for the copies in progress.
  ~MachineStates();

  /// Creates the directories. Throws ConfigError on all ranks if a machine
  /// cannot.
  void make_directories();

  /// The states that can be loaded, newest first; the same on all ranks.
  /// Removes anything else that machines hold of states. Collective.
  std::vector<MemoryState> survey();
  /// The number of the next state, which no machine has used; set by survey().
  [[nodiscard]] std::int64_t next_number() const { return next_number_; }
  /// A sentence about the newest state if a part of it is lost; otherwise
  /// empty.
  [[nodiscard]] const std::string& lost() const { return lost_; }

  /// Loads the state of this name, from survey(), into everything that is
  /// prepared. Parts that machines have lost come from the machines that hold
  /// their copies. Throws as Accelerator::load_state(), and CheckpointError if
  /// a part cannot be fetched.
  void load(
      const Accelerator& accelerator,
      const std::string& name,
      const LoadStateOptions& options);
  /// Removes all states except the one loaded last, if any, and makes its
  /// missing copies.
  void settle();

  /// Begins to save a state. Returns false, having done nothing, while the
  /// previous state or a checkpoint of the project is still incomplete.
  bool begin(
      const Accelerator& accelerator,
      const std::string& name,
      WhenBusy when_busy = WhenBusy::skip);
  /// This rank's view of the state being kept.
  enum Progress : std::int64_t { done = 0, failed = 1, busy = 2 };
  [[nodiscard]] Progress progress();
  /// Saves a state such that every machine has all of it on return, so that any
  /// of them may leave. Waits for a state that is being kept. Throws
  /// CheckpointError if that is impossible. Collective.
  void keep_whole(const Accelerator& accelerator, const std::string& name);
  /// Does the next part of a save, given that the largest progress of all ranks
  /// is `agreed`. Throws DistributedError if another machine was lost.
  void advance(Progress agreed);

 private:
  enum class Phase { idle, saving, copying };
  /// The state that is being kept, and this rank's part in it.
  struct KeptState {
    Phase phase = Phase::idle;
    std::string name;
    std::optional<SaveTicket> ticket;
    std::optional<Progress> outcome;
    std::thread copier;
    std::atomic<bool> has_copied{false};
    std::string problem;
    std::exception_ptr error;
  };

  Progress wait_for_phase();
  // Removes all states of this machine except this one.
  void keep_only(const std::string& name);
  void copy_in_background();

  World world_;
  std::filesystem::path memory_;
  MachineHoldings holdings_;
  std::int64_t next_number_ = 0;
  std::string lost_;
  std::string loaded_;
  /// Set by make_directories() where machines may join and leave.
  std::optional<WholeStates> whole_;
  bool may_change_;
  // Whether the loaded state was reassembled by WholeStates.
  bool loaded_whole_ = false;

  KeptState kept_;
};

}  // namespace accelerate::detail
