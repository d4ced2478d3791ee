#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <accelerate/checkpoint.h>
#include <accelerate/export.h>

namespace accelerate {

class Accelerator;

namespace detail {
struct ElasticRun;
}  // namespace detail

/// Where ranks keep a state to go back to, besides checkpoints of the project.
enum class Redundancy {
  none,
  /// In memory of the machine, outside the ranks' processes: what one of them
  /// writes outlives it. On several machines, each part also in the memory of the
  /// next machine.
  neighbour,
};

/// What stays the same when a group changes its size.
enum class ElasticBatch {
  /// The samples of a step on all ranks together.
  global,
  /// The samples of a step on each rank, so that those of all ranks grow and
  /// shrink with their number. The learning rate is left to the program.
  per_rank,
};

struct ElasticOptions {
  /// Unset: as the launcher says (`--redundancy`), else none.
  std::optional<Redundancy> redundancy = std::nullopt;
  /// How many steps lie between two such states. Each costs a copy of the state
  /// to host memory while training waits, and up to three times its size in
  /// memory of the machine while it is saved. Unset: as the launcher says (`--redundancy_steps`), else 10.
  std::optional<int> redundancy_steps = std::nullopt;
  /// The directory in memory for these states, of ranks that run on one machine
  /// together. Empty: the launcher's own below /dev/shm, which it removes when
  /// it ends.
  std::filesystem::path memory_dir = {};
  /// Samples of a step on all ranks together; see
  /// ElasticContext::gradient_accumulation_steps(). With ElasticBatch::per_rank,
  /// those of the most ranks that the group may have. 0: not used.
  std::int64_t global_batch_size = 0;
  /// Whether a step keeps global_batch_size or each rank's part of it when the
  /// number of ranks changes. Unset: as the launcher says (`--elastic_batch`),
  /// else global.
  std::optional<ElasticBatch> batch = std::nullopt;
};

/// How run_elastic() ended.
enum class ElasticEnd {
  finished,   ///< the function has returned by itself
  preempted,  ///< the ranks were told to end, and have saved
  left,       ///< the group goes on without this process or its machine
};

/// What the function of run_elastic() is called with: this process's part in one
/// generation of the group. Not for several threads at once.
class ACCELERATE_API ElasticContext {
 public:
  explicit ElasticContext(std::shared_ptr<detail::ElasticRun> run);

  /// Number of the generation, from 1. It grows when a rank was replaced and
  /// when the group has changed its size.
  [[nodiscard]] int generation() const;
  [[nodiscard]] int num_processes() const;
  [[nodiscard]] int process_index() const;

  /// The window with which the ranks of this generation read
  /// `ElasticOptions::global_batch_size` samples per step, for
  /// AcceleratorOptions::gradient_accumulation_steps; with
  /// ElasticBatch::per_rank, the window with which the most ranks that the group
  /// may have would, whatever their number is now. `batch_size` is that of a
  /// rank's batches; `ranks_per_batch`, how many ranks share a batch (the
  /// product of tensor, context and pipeline degrees). Where the samples cannot
  /// be divided, the nearest window, which resume() reports. Throws ConfigError
  /// without a global_batch_size, and for sizes below 1.
  [[nodiscard]] int gradient_accumulation_steps(
      std::int64_t batch_size,
      int ranks_per_batch = 1) const;

  /// Gives everything prepared and registered the newest state there is: that of
  /// the last step in memory, or the newest complete checkpoint of the project.
  /// Returns whether there was one; call it before the loop, when everything is
  /// prepared. All ranks must call it. Throws as Accelerator::load_state(), and
  /// ConfigError for Redundancy::neighbour on several machines, or without a
  /// directory in memory.
  bool resume(
      const Accelerator& accelerator,
      const LoadStateOptions& options = {}) const;

  /// For the end of each step, or of each micro-step, where it returns at once
  /// inside a window. Keeps a state in memory every redundancy_steps steps. True
  /// on all ranks in the same call if they are to leave: the function then
  /// returns. That is so if the group gets another size (resizing()), for which
  /// the state is kept in memory, and if a process was told to end
  /// (preempted(); AcceleratorOptions::preemption_signals): then the state was
  /// saved as a checkpoint of the project, if that names its checkpoints.
  /// Collective; communicates two numbers.
  [[nodiscard]] bool step_done(const Accelerator& accelerator) const;

  /// Why step_done() was true.
  [[nodiscard]] bool resizing() const;
  [[nodiscard]] bool preempted() const;

 private:
  std::shared_ptr<detail::ElasticRun> run_;
};

/// Calls `function`, which makes its Accelerator, models and loaders, prepares
/// them, calls resume() and trains. When another rank of the group ends, and
/// `accelerate-cpp launch` was told to replace it (`--max_restarts`), or may go
/// on without it (`--num_processes 2:8`), this process stays: it leaves
/// `function` by the DistributedError that tells of the lost peer, waits until
/// the launcher has started another process for the rank, and calls
/// `function` anew. What is made outside of `function` (loaded data, LibTorch,
/// a device's context) is kept.
///
/// Worlds and Accelerators must be made, and destroyed, in `function`; it must
/// not swallow DistributedErrors. Other exceptions are passed on, and end the
/// process as ever, which the launcher then replaces.
///
/// Under another launcher, and on several machines without `--num_processes
/// MIN:MAX`, `function` is called once; a group that is started again goes on
/// from its checkpoints.
ACCELERATE_API ElasticEnd run_elastic(
    const std::function<void(ElasticContext&)>& function,
    const ElasticOptions& options = {});

}  // namespace accelerate
