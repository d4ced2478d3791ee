#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <accelerate/checkpoint.h>
#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

namespace accelerate {

class Accelerator;

namespace detail {
struct ElasticRun;
}  // namespace detail

/// Where ranks keep a state to fall back to, in addition to the project's
/// checkpoints.
enum class Redundancy {
  /// Nowhere: the newest checkpoint is all there is.
  none,
  /// Memory of the machine, outside the ranks' processes, so that the state
  /// outlives them. With several machines, each part is also kept in the next
  /// machine's memory.
  neighbour,
};

/// What stays the same when a group's size changes.
enum class ElasticBatch {
  /// The samples of a step on all ranks together.
  global,
  /// The samples of a step on each rank, so that the global batch grows and
  /// shrinks with the number of ranks. Adapting the learning rate is up to the
  /// program.
  per_rank,
};

struct ElasticOptions {
  /// Where states are kept besides checkpoints. Unset: as the launcher says
  /// (`--redundancy`), else none.
  std::optional<Redundancy> redundancy = std::nullopt;
  /// Number of steps between two such states; one is skipped while the previous
  /// one is still being saved. Each costs a copy of the state to host memory
  /// while training waits, and up to three times its size in the machine's
  /// memory while it is saved; fewer steps lose less work. Unset: as the
  /// launcher says (`--redundancy_steps`), else 10.
  std::optional<int> redundancy_steps = std::nullopt;
  /// The in-memory directory for these states, shared by the ranks of one
  /// machine. Empty: the launcher's own below /dev/shm, which it removes when
  /// it ends.
  std::filesystem::path memory_dir = {};
  /// Samples of a step on all ranks together; see
  /// ElasticContext::gradient_accumulation_steps(). With
  /// ElasticBatch::per_rank, for the largest number of ranks that the group can
  /// have. 0: not used.
  std::int64_t global_batch_size = 0;
  /// Whether a step keeps global_batch_size or each rank's share of it when the
  /// number of ranks changes. Unset: as the launcher says (`--elastic_batch`),
  /// else global.
  std::optional<ElasticBatch> batch = std::nullopt;
};

/// How run_elastic() ended.
enum class ElasticEnd {
  finished,   ///< the function has returned by itself
  preempted,  ///< the ranks were told to end, and have saved
  left,       ///< the group continues without this process or its machine
};

/// The argument of run_elastic()'s function: this process's part in one
/// generation of the group. Not thread-safe.
class ACCELERATE_API ElasticContext {
 public:
  explicit ElasticContext(std::shared_ptr<detail::ElasticRun> run);

  /// Number of the generation, from 1. It grows when a rank is replaced and
  /// when the group changes its size.
  [[nodiscard]] int generation() const;
  /// Number of ranks of this generation.
  [[nodiscard]] int num_processes() const;
  /// This process's rank in this generation; it may change in the next.
  [[nodiscard]] int process_index() const;

  /// The window with which the ranks of this generation read
  /// `ElasticOptions::global_batch_size` samples per step, for
  /// AcceleratorOptions::gradient_accumulation_steps; with
  /// ElasticBatch::per_rank, the window of the largest possible group, so that
  /// samples per rank stay constant.
  /// `batch_size` is the size of a rank's batches; `ranks_per_batch` is how
  /// many ranks share a batch (the product of tensor, context and pipeline
  /// degrees). If the samples do not divide evenly, returns the nearest window,
  /// which resume() reports. Throws ConfigError without a global_batch_size,
  /// and for sizes below 1.
  [[nodiscard]] int gradient_accumulation_steps(
      std::int64_t batch_size,
      int ranks_per_batch = 1) const;

  /// Restores everything prepared and registered to the newest state there is:
  /// the last one kept in memory, or the newest complete checkpoint of the
  /// project. Returns whether there was one; call it before the loop, once
  /// everything is prepared. All ranks must call it. Throws like
  /// Accelerator::load_state(), and ConfigError for Redundancy::neighbour on
  /// several machines, or without a directory in memory.
  bool resume(
      const Accelerator& accelerator,
      const LoadStateOptions& options = {}) const;

  /// Call it at the end of each step, or of each micro-step, where it returns
  /// at once inside a window. Keeps a state in memory every redundancy_steps
  /// steps. Returns true on all ranks in the same call if run_elastic()'s
  /// function must return: because the group changes its size (resizing()), in
  /// which case the state is kept in memory, or because a process was told to
  /// end (preempted(); AcceleratorOptions::preemption_signals), in which case
  /// it is saved as a checkpoint of the project, if automatic_checkpoint_naming
  /// is on. Collective; communicates a few numbers. If it saves, it throws the
  /// error of an earlier asynchronous save of the program, as save_state()
  /// does.
  [[nodiscard]] bool step_done(const Accelerator& accelerator) const;

  /// Why step_done() was true.
  [[nodiscard]] bool resizing() const;
  /// True if the ranks were told to end, by a signal or the launcher.
  [[nodiscard]] bool preempted() const;

 private:
  detail::KeptPtr<detail::ElasticRun> run_;
};

/// Calls `function`, which makes its Accelerator, models and loaders, prepares
/// them, calls resume() and trains. When another rank of the group dies, and
/// `accelerate-cpp launch` was told to replace it (`--max_restarts`), or can
/// continue without it (`--num_processes 2:8`), this process stays: it leaves
/// `function` with the DistributedError about the lost peer, waits until the
/// launcher has started another process for the rank, and calls `function`
/// again. What was made outside `function` (loaded data, LibTorch, a device's
/// context) is kept.
///
/// Worlds and Accelerators must be made and destroyed in `function`, which must
/// not swallow DistributedErrors. Other exceptions propagate and end the
/// process as usual; the launcher then replaces it.
///
/// Under another launcher, and on several machines without `--num_processes
/// MIN:MAX`, `function` is called once; a restarted group resumes from its
/// checkpoints.
ACCELERATE_API ElasticEnd run_elastic(
    const std::function<void(ElasticContext&)>& function,
    const ElasticOptions& options = {});

}  // namespace accelerate
