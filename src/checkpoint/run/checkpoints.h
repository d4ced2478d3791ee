#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/checkpoint.h>
#include <accelerate/detail/loader_slot.h>
#include <accelerate/world.h>

#include "base/files/file_system.h"
#include "base/progress/byte_progress.h"
#include "checkpoint/components/component.h"
#include "checkpoint/components/models.h"
#include "checkpoint/save/saver.h"
#include "comm/agreement/rank_agreement.h"
#include "comm/agreement/store_group.h"

namespace accelerate::detail {

template <class Hook>
using HookList = std::vector<std::pair<std::int64_t, Hook>>;

/// Lists the components of a checkpoint; models only where their entry in
/// `with_weights` is true.
using ListComponents =
    std::function<ComponentList(const std::vector<bool>& with_weights)>;

/// An accelerator's state for checkpoints, kept from one checkpoint to the
/// next.
struct CheckpointState {
  /// `rank_agreement` must outlive it.
  CheckpointState(
      const World& ranks,
      RankAgreement& rank_agreement,
      ProjectConfiguration configuration);
  /// Waits for the save in progress. During stack unwinding it does not wait
  /// for other ranks.
  ~CheckpointState();

  World world;
  RankAgreement& agreement;
  ProjectConfiguration project;
  std::shared_ptr<FileSystem> disk = make_file_system();
  /// Options of the progress bars that long saves and loads show on this rank.
  ProgressOptions progress = {.disable = true};
  /// The user's objects, in the order of their registration.
  std::vector<AnyStateful> objects;
  /// The slots of prepared loaders, in the order of their preparation.
  std::vector<std::shared_ptr<LoaderSlot>> loaders;
  /// Components that features register for all saves and loads.
  ComponentList components;
  HookList<std::function<void(SaveHookContext&)>> save_hooks;
  HookList<std::function<void(LoadHookContext&)>> load_hooks;
  std::int64_t next_hook = 0;
  /// What another layout leaves out and has already been reported.
  std::shared_ptr<std::set<std::string>> known_left_out =
      std::make_shared<std::set<std::string>>();
  /// The ranks that write one directory: all, or those of this node.
  std::vector<int> writers;
  /// The group of `writers`; created when first needed.
  std::optional<StoreGroup> saves;
  /// Set by a WholeStateScope: saves and loads leave nothing out, whatever the
  /// checkpoint settings say.
  bool is_whole = false;
  /// Set by a MachinePartScope: this machine's directory.
  std::optional<std::filesystem::path> machine_directory = std::nullopt;
  /// The group of this machine's ranks; created when first needed.
  std::optional<StoreGroup> machine_saves;
  /// Declared last: its thread is joined before the members that it uses are
  /// destroyed.
  Saver saver;

  [[nodiscard]] WriterRule writer_rule() const {
    WriterRule rule{project.save_on_each_node, is_first_writer()};
    if (machine_directory) rule.first_of_machine = writers.front();
    return rule;
  }
  /// True if this rank writes the files that each directory has once.
  [[nodiscard]] bool is_first_writer() const {
    return writers.front() == world.rank();
  }
  /// True if this rank chooses a checkpoint for the ranks that share its disk.
  [[nodiscard]] bool chooses() const {
    return agreement.is_leader() || is_per_node();
  }
  /// True if the ranks of each node have their own directory.
  [[nodiscard]] bool is_per_node() const {
    return project.save_on_each_node || machine_directory.has_value();
  }
  StoreGroup& save_group();
  /// A bar for the bytes that `call` moves on this rank, if one is shown.
  [[nodiscard]] std::shared_ptr<ByteProgress> show_progress(
      std::string call,
      std::optional<std::uint64_t> num_bytes) const;
  /// The slots of loaders, without those at the end whose loaders were
  /// destroyed.
  const std::vector<std::shared_ptr<LoaderSlot>>& live_loaders();
};

/// While it lives, saves and loads concern whole states, which a run keeps for
/// itself.
class WholeStateScope {
 public:
  explicit WholeStateScope(CheckpointState& checkpoints)
      : checkpoints_(checkpoints) {
    checkpoints_.is_whole = true;
  }
  WholeStateScope(const WholeStateScope&) = delete;
  WholeStateScope& operator=(const WholeStateScope&) = delete;
  ~WholeStateScope() { checkpoints_.is_whole = false; }

 private:
  CheckpointState& checkpoints_;
};

/// While it lives, saves and loads concern the parts of a state that machines
/// keep: each machine writes and reads its own directory, which holds what its
/// ranks hold, sharded or not, and which they can load without other machines.
/// Only the name of the directory passed to a call counts.
class MachinePartScope {
 public:
  /// `directory` holds the parts of this machine.
  MachinePartScope(
      CheckpointState& checkpoints,
      std::filesystem::path directory);
  MachinePartScope(const MachinePartScope&) = delete;
  MachinePartScope& operator=(const MachinePartScope&) = delete;
  ~MachinePartScope();

 private:
  CheckpointState& checkpoints_;
  std::vector<int> writers_;
};

/// Implements save_state(). All ranks call it: they agree on where to save, run
/// the hooks, collect the components, and write them or start writing. If
/// `output_dir` is empty, ProjectConfiguration chooses the directory.
SaveTicket save_checkpoint(
    CheckpointState& checkpoints,
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components);

/// Implements load_state(). All ranks call it: they agree on what to load, run
/// the hooks, check all components, and only then load them. An empty
/// `input_dir` means the project's newest checkpoint that is complete and
/// undamaged. Returns which models' weights were loaded.
std::vector<bool> load_checkpoint(
    CheckpointState& checkpoints,
    const std::filesystem::path& input_dir,
    const LoadStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components);

/// Implements resume(): load_state() with the project's newest checkpoint.
/// Returns nothing if there is none.
std::optional<std::vector<bool>> resume_checkpoint(
    CheckpointState& checkpoints,
    const LoadStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components);

/// Implements Checkpoints::latest(). All ranks call it.
std::optional<std::filesystem::path> agree_on_newest(
    CheckpointState& checkpoints);

}  // namespace accelerate::detail
