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

#include "train/elastic/directory_moves.h"
#include "train/elastic/memory_states.h"
#include "train/elastic/whole_states.h"

namespace accelerate {
class Accelerator;
}

namespace accelerate::detail {

/// The states that several machines keep in memory: each has the part that its
/// own ranks hold (see MachinePartScope), and a copy of the part of the machine
/// before it, so that a machine may be lost with its memory. A state is complete
/// once every part and every copy is; until then the one before it stays.
///
/// Where machines may join and leave, states that other machines, or another
/// number of them, have kept can be loaded, too; see WholeStates.
///
/// Made, and used, by all ranks in the same order.
class MachineStates {
 public:
  /// `memory`: a directory in the memory of this machine. `may_change`: whether
  /// machines may join and leave; states of other machines are left alone
  /// otherwise. Collective.
  MachineStates(
      const World& world,
      const std::filesystem::path& memory,
      bool may_change = false);
  MachineStates(const MachineStates&) = delete;
  MachineStates& operator=(const MachineStates&) = delete;
  /// Waits for the copies under way.
  ~MachineStates();

  /// Makes the directories. Throws ConfigError on all ranks if a machine cannot.
  void make_directories();

  /// The states that can be loaded, the newest first; equal on all ranks. What
  /// else machines have of states is removed. Collective.
  std::vector<MemoryState> survey();
  /// The number of the next state, which no machine has used, after survey().
  [[nodiscard]] std::int64_t next_number() const { return next_number_; }
  /// A sentence about the newest state of which a part is lost; empty if none.
  [[nodiscard]] const std::string& lost() const { return lost_; }

  /// Gives everything that is prepared the state of this name, of survey(), for which parts
  /// that machines have lost come from those that hold their copies. Throws as
  /// Accelerator::load_state(), CheckpointError if a part cannot be fetched.
  void load(
      const Accelerator& accelerator,
      const std::string& name,
      const LoadStateOptions& options);
  /// Removes all states but the one loaded last, if one was, whose missing
  /// copies are made.
  void settle();

  /// Begins to save a state. Returns false, having done nothing, while the last
  /// one, or a checkpoint of the project, is not complete yet.
  bool begin(
      const Accelerator& accelerator,
      const std::string& name,
      WhenBusy when_busy = WhenBusy::skip);
  /// This rank's view of the state that is being kept.
  enum Progress : std::int64_t { done = 0, failed = 1, busy = 2 };
  [[nodiscard]] Progress progress();
  /// Saves a state of which every machine has all when this returns, so that any
  /// of them may leave. Waits for one that is being kept. Throws CheckpointError
  /// if that is not possible. Collective.
  void keep_whole(const Accelerator& accelerator, const std::string& name);
  /// Goes on with what is due when the largest progress of all ranks is
  /// `agreed`. Throws DistributedError if another machine was lost.
  void advance(Progress agreed);

 private:
  enum class Phase { idle, saving, copying };

  // What one machine has.
  struct Holding {
    int first_rank = 0;
    std::vector<std::string> parts;
    std::vector<std::string> copies;
  };

  Progress wait_for_phase();
  [[nodiscard]] bool is_first() const { return world_.local_rank() == 0; }
  [[nodiscard]] std::size_t num_machines() const { return firsts_.size(); }
  // The machine that has the copy of this one's part.
  [[nodiscard]] std::size_t holder_of(std::size_t machine) const {
    return (machine + 1) % num_machines();
  }
  [[nodiscard]] bool has_part(std::size_t machine, const std::string& name)
      const;
  [[nodiscard]] bool has_copy(std::size_t machine, const std::string& name)
      const;
  [[nodiscard]] std::vector<Holding> exchange_holdings() const;
  // The machines whose part of the state nobody holds in its place.
  [[nodiscard]] std::vector<std::string> lost_parts(
      const std::string& name) const;
  // Moves from machines to those after them, or back, where `is_wanted`.
  [[nodiscard]] std::vector<DirectoryMove> copies_of(
      const std::string& name,
      const std::vector<std::size_t>& machines) const;
  void move(const std::vector<DirectoryMove>& moves, const std::string& what);
  // Makes this machine keep no state but this one.
  void keep_only(const std::string& name);
  void forget(const std::string& name) const;
  void copy_in_background();

  World world_;
  std::filesystem::path memory_;
  std::filesystem::path directory_;
  std::vector<int> firsts_;
  std::size_t machine_ = 0;
  /// The first ranks of all machines; only they have it.
  std::optional<Group> between_;
  std::vector<Holding> holdings_;
  std::int64_t next_number_ = 0;
  std::string lost_;
  std::string loaded_;
  /// Set where machines may join and leave, after make_directories().
  std::optional<WholeStates> whole_;
  bool may_change_;
  // Whether the state loaded was put together anew.
  bool loaded_whole_ = false;

  Phase phase_ = Phase::idle;
  std::string kept_;
  std::optional<SaveTicket> ticket_;
  std::optional<Progress> outcome_;
  std::thread thread_;
  std::atomic<bool> has_copied_{false};
  std::string copy_problem_;
  std::exception_ptr copy_error_;
};

}  // namespace accelerate::detail
