#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/state_dict.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// What can be saved in a checkpoint and restored from it.
template <class T>
concept Stateful =
    requires(T& object, const T& constant, const StateDict& state) {
  { constant.state_dict() } -> std::convertible_to<StateDict>;
  object.load_state_dict(state);
};

/// Where a program's files go, and how checkpoints are named and kept.
struct ProjectConfiguration {
  std::string project_dir = {};
  /// Of trackers; empty: project_dir.
  std::string logging_dir = {};
  /// save_state() writes `project_dir`/checkpoints/checkpoint_<number>, and
  /// load_state() without a path takes the newest complete one.
  bool automatic_checkpoint_naming = false;
  /// Keep so many automatic checkpoints, the new one counted; at least 1. Older
  /// ones are deleted after the new one is complete.
  std::optional<int> total_limit = std::nullopt;
  /// Number of the next automatic checkpoint. Unset: one more than the highest
  /// there is.
  std::optional<std::int64_t> iteration = std::nullopt;
  /// Each machine writes to its own disk, by its first rank.
  bool save_on_each_node = false;

  void set_directories(const std::string& dir) {
    project_dir = dir;
    if (logging_dir.empty()) logging_dir = dir;
  }
};

/// What a save does while another is still being written.
enum class WhenBusy {
  wait,  ///< until it is done
  skip,  ///< nothing: the ticket says that it was skipped
};

struct SaveStateOptions {
  /// Return when everything is copied to host memory; the files are written
  /// meanwhile. An error comes at the next save, load or finish(), or from the
  /// ticket.
  bool asynchronous = false;
  WhenBusy when_busy = WhenBusy::wait;
  /// What an asynchronous save may hold in host memory on this rank, in bytes;
  /// a larger one is written before save_state returns. 0: no limit.
  std::uint64_t memory_limit = 0;
  /// False: models as torch files (pytorch_model.bin) in place of safetensors.
  bool safe_serialization = true;
};

struct LoadStateOptions {
  /// Everything saved and everything prepared must match. False: what is missing
  /// is left as it is, what is left over ignored; shapes must match still.
  bool strict = true;
  /// Names of parameters, buffers and optimizer state that are left as they are;
  /// patterns with * and ?.
  std::vector<std::string> skip = {};
  /// Those that may be missing in the checkpoint.
  std::vector<std::string> allow_missing = {};
  /// Read everything once more beforehand and compare checksums.
  bool verify = false;
};

namespace detail {
struct SaveProgress;
}

/// A save under way, or done. A cheap handle; destroying it waits for nothing.
class ACCELERATE_API SaveTicket {
 public:
  explicit SaveTicket(std::shared_ptr<detail::SaveProgress> progress);

  /// Where the checkpoint is, or will be.
  [[nodiscard]] const std::filesystem::path& path() const;
  /// It is complete and durable, was skipped, or failed.
  [[nodiscard]] bool is_done() const;
  /// Another save was under way, so nothing was or will be written.
  [[nodiscard]] bool was_skipped() const;
  /// Returns when it is done; throws the error it failed with.
  void wait() const;

 private:
  std::shared_ptr<detail::SaveProgress> progress_;
};

/// What a save's hook sees. It runs on every rank.
struct SaveHookContext {
  /// As prepared.
  std::vector<std::shared_ptr<torch::nn::Module>> models;
  /// One for each: the checkpoint holds its weights. A hook that saves a model
  /// itself sets it to false, on all ranks.
  std::vector<bool> save_weights;
  /// Files written here, and in folders made here, are part of the checkpoint.
  std::filesystem::path output_dir;
};

/// What a load's hook sees. It runs on every rank.
struct LoadHookContext {
  std::vector<std::shared_ptr<torch::nn::Module>> models;
  /// One for each: its weights are loaded. A hook that loads a model itself sets
  /// it to false, on all ranks.
  std::vector<bool> load_weights;
  std::filesystem::path input_dir;
};

/// A hook's place among the others. A cheap handle; destroying it leaves the
/// hook in place.
class ACCELERATE_API HookHandle {
 public:
  explicit HookHandle(std::function<void()> remove)
      : remove_(std::move(remove)) {}
  /// The hook is not called any more.
  void remove() const { remove_(); }

 private:
  std::function<void()> remove_;
};

}  // namespace accelerate
