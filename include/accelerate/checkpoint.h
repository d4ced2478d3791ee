#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/state_dict.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// A type that can be saved in a checkpoint and restored from it.
template <class T>
concept Stateful =
    requires(T& object, const T& constant, const StateDict& state) {
      { constant.state_dict() } -> std::convertible_to<StateDict>;
      object.load_state_dict(state);
    };

/// A type whose variables can be registered by name: integers and
/// floating-point numbers, bool, std::string, at::Tensor.
template <class T>
concept CheckpointValue = std::same_as<T, bool> ||
    std::same_as<T, signed char> || std::same_as<T, unsigned char> ||
    std::same_as<T, short> || std::same_as<T, unsigned short> ||
    std::same_as<T, int> || std::same_as<T, unsigned int> ||
    std::same_as<T, long> || std::same_as<T, unsigned long> ||
    std::same_as<T, long long> || std::same_as<T, unsigned long long> ||
    std::same_as<T, float> || std::same_as<T, double> ||
    std::same_as<T, std::string> || std::same_as<T, at::Tensor>;

/// Where a program writes its files, and how checkpoints are named and kept.
struct ProjectConfiguration {
  /// Directory of the project; checkpoints go to `checkpoints` in it. Empty:
  /// none.
  std::string project_dir = {};
  /// Directory of trackers and of the run's journal; empty: project_dir.
  std::string logging_dir = {};
  /// save_state() writes `project_dir`/checkpoints/checkpoint_<number>, and
  /// load_state() without a path takes the newest complete one.
  bool automatic_checkpoint_naming = false;
  /// Number of automatic checkpoints to keep, including the new one; at least
  /// 1. Older ones are deleted after the new one is complete.
  std::optional<int> total_limit = std::nullopt;
  /// Number of the next automatic checkpoint, at least 0. Unset: one above the
  /// highest present.
  std::optional<std::int64_t> iteration = std::nullopt;
  /// The first rank of each node writes to that node's own disk.
  bool save_on_each_node = false;

  /// Sets project_dir, and logging_dir if it is empty.
  void set_directories(const std::string& dir) {
    project_dir = dir;
    if (logging_dir.empty()) logging_dir = dir;
  }
};

/// What a save does while another is still being written.
enum class WhenBusy {
  wait,  ///< until the other is done
  skip,  ///< do nothing: the ticket says that it was skipped
};

/// The format of a checkpoint.
enum class CheckpointLayout {
  /// This library's: checksums, shards as the ranks hold them, and everything
  /// needed to resume training exactly.
  native,
  /// That of Python's `Accelerator.save_state`, which its `load_state` reads:
  /// model.safetensors, optimizer.bin, scheduler.bin, scaler.pt,
  /// random_states_<rank>.pkl, custom_checkpoint_<i>.pkl. Has no checksums,
  /// loader positions or state of compressed gradients; sharded models and
  /// optimizers are written in full. Optimizers must be AdamW, Adam, SGD,
  /// Adagrad or RMSprop.
  accelerate,
};

struct SaveStateOptions {
  /// Return once everything is copied to host memory; the files are written in
  /// the background. Errors are thrown by the next save, load or
  /// end_training(), or by the ticket. Takes host memory for all that this rank
  /// writes; a state that lies in files is written at once.
  bool asynchronous = false;
  /// What happens if an earlier asynchronous save is still being written.
  WhenBusy when_busy = WhenBusy::wait;
  /// Maximum host memory, in bytes, of an asynchronous save on this rank; a
  /// larger save is written before save_state returns. 0: no limit.
  std::uint64_t memory_limit = 0;
  /// If false, write models as torch files (pytorch_model.bin) instead of
  /// safetensors, for programs that cannot read these.
  bool safe_serialization = true;
  /// `accelerate` for checkpoints that Python continues from. Costs a second
  /// pass over what the ranks have written, on the first rank.
  CheckpointLayout layout = CheckpointLayout::native;
};

struct LoadStateOptions {
  /// Everything saved and everything prepared must match. If false, what the
  /// checkpoint lacks is left unchanged and what it has in excess is ignored;
  /// shapes must still match.
  bool strict = true;
  /// Names of parameters, buffers and optimizer state that are left unchanged;
  /// patterns with * and ?.
  std::vector<std::string> skip = {};
  /// Names that may be missing from the checkpoint.
  std::vector<std::string> allow_missing = {};
  /// Verify checksums while reading. If the newest checkpoint turns out to be
  /// damaged, a call without a path warns and loads the one before it; a call
  /// with a path throws CheckpointError, and may leave prepared objects with a
  /// mix of old and new state. If false, the time of hashing is saved.
  bool verify = true;
};

namespace detail {
struct SaveProgress;

/// The getter and setter of any object's state.
struct AnyStateful {
  std::function<StateDict()> state_dict;
  std::function<void(const StateDict&)> load_state_dict;
};

/// The state of an object that the program registers.
template <class T>
AnyStateful registered_state(T& object) {
  static_assert(
      Stateful<T>,
      "register_for_checkpointing() takes objects with state_dict() and "
      "load_state_dict(); a plain value needs a name: "
      "register_for_checkpointing(\"epoch\", epoch)");
  if constexpr (Stateful<T>) {
    return {
        [&object] { return StateDict(std::as_const(object).state_dict()); },
        [&object](const StateDict& state) { object.load_state_dict(state); }};
  } else {
    return {};
  }
}

/// The state of a variable that the program registers by name. Compiled for
/// each CheckpointValue.
template <CheckpointValue T>
ACCELERATE_API AnyStateful registered_state(const std::string& name, T& value);

}  // namespace detail

/// A save in progress, or finished. A cheap handle; destroying it does not
/// wait.
class ACCELERATE_API SaveTicket {
 public:
  explicit SaveTicket(std::shared_ptr<detail::SaveProgress> progress);

  /// The path that the checkpoint has, or will have.
  [[nodiscard]] const std::filesystem::path& path() const;
  /// True once the save is complete and durable, was skipped, or failed.
  [[nodiscard]] bool is_done() const;
  /// True if another save was in progress, so that nothing was or will be
  /// written.
  [[nodiscard]] bool was_skipped() const;
  /// Waits until the save is done; throws its error if it failed.
  void wait() const;

 private:
  detail::KeptPtr<detail::SaveProgress> progress_;
};

/// The argument of a save hook. The hook runs on every rank.
struct SaveHookContext {
  /// The modules, as prepared.
  std::vector<std::shared_ptr<torch::nn::Module>> models;
  /// One entry per model: whether the checkpoint holds its weights. A hook that
  /// saves a model itself sets it to false, on all ranks.
  std::vector<bool> save_weights;
  /// Files and directories that the hook puts here are part of the checkpoint.
  std::filesystem::path output_dir;
};

/// The argument of a load hook. The hook runs on every rank.
struct LoadHookContext {
  /// The models that load_state() restores, in the order in which they were
  /// prepared.
  std::vector<std::shared_ptr<torch::nn::Module>> models;
  /// One entry per model: whether its weights are loaded. A hook that loads a
  /// model itself sets it to false, on all ranks.
  std::vector<bool> load_weights;
  /// The directory of the checkpoint.
  std::filesystem::path input_dir;
};

/// Identifies a registered hook. A cheap handle; destroying it leaves the hook
/// in place.
class ACCELERATE_API HookHandle {
 public:
  explicit HookHandle(std::function<void()> remove)
      : remove_(std::move(remove)) {}
  /// Unregisters the hook; does nothing if the handle was moved from.
  void remove() const {
    if (remove_) remove_();
  }

 private:
  std::function<void()> remove_;
};

}  // namespace accelerate
