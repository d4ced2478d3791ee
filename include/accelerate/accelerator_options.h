#pragma once

#include <optional>
#include <string>

#include <accelerate/checkpoint.h>
#include <accelerate/grad_scaler.h>
#include <accelerate/parallel.h>
#include <accelerate/precision.h>
#include <accelerate/world.h>

namespace accelerate {

/// How micro-steps add up to a step.
struct GradientAccumulationOptions {
  /// Another place for `gradient_accumulation_steps`, where Accelerate's plugin
  /// has it. Giving both above 1, and different, is an error.
  std::optional<int> num_steps = std::nullopt;
  /// A loader's last batch ends the window, so that no gradient is carried into
  /// the next epoch.
  bool sync_with_dataloader = true;
  /// Average over the ranks in every micro-step, not in a window's last only:
  /// more traffic, but no rank keeps gradients of its own.
  bool sync_each_batch = false;
  /// Divide the losses of a window that a loader's end cut short by the full
  /// number of micro-steps, as Accelerate does; such a step then counts for
  /// less. Else they are divided by the true number.
  bool divide_by_full_window = false;
};

/// When prepared schedules step.
struct SchedulerOptions {
  /// Only when the optimizer really stepped. False: at every call.
  bool step_with_optimizer = true;
  /// As many steps of the schedule as there are processes for each of the
  /// optimizer's, as Accelerate does unless batches are split: for schedules
  /// that were written in steps of one process.
  bool step_with_processes = false;
};

/// What the code decides. A field left unset takes what the launcher said (its
/// flags, the environment, the config file), else the default.
struct AcceleratorOptions {
  // Precision.

  /// Autocast around every prepared model's forward; with `fp16` losses are
  /// scaled too. `fp8` is refused in this version. Unset without a launcher:
  /// `no`.
  std::optional<Precision> mixed_precision = std::nullopt;
  AutocastOptions autocast = {};
  /// Used with `fp16` only.
  GradScalerOptions grad_scaler = {};
  /// Parameters in bf16 or fp16 get fp32 copies that the optimizer steps on;
  /// after each step they are rounded into the model. Half the memory of an
  /// fp32 model in forward and backward, with nearly its results.
  bool master_weights = false;

  // The step.

  /// Micro-steps whose gradients are averaged before the optimizer steps; used
  /// by `accumulate`. Unset without a launcher: 1.
  std::optional<int> gradient_accumulation_steps = std::nullopt;
  GradientAccumulationOptions gradient_accumulation = {};
  SchedulerOptions scheduler = {};

  // Devices, ranks and how they share the work.

  /// True keeps to the CPU where there is an accelerator.
  std::optional<bool> cpu = std::nullopt;
  ParallelOptions parallel = {};
  /// Freed memory of CPU tensors of 1 MiB and more is kept for tensors of the
  /// same size, as much as the gradients of prepared models take on this rank,
  /// while these models live. Steps are faster and the heap has fewer holes,
  /// but the process is changed: LibTorch's CPU allocator is replaced by one
  /// that passes on what it does not keep, and glibc maps every block of 128
  /// KiB and more (`mallopt`), both until it ends. An allocator that the
  /// program registered stays, then nothing is kept. Only where the device is
  /// the CPU. Unset: for models where sharding was asked for, unless
  /// `MALLOC_MMAP_THRESHOLD_` is in the environment. False: neither is
  /// touched.
  std::optional<bool> keep_freed_blocks = std::nullopt;

  // Results.

  /// Where a program keeps its results; see `Accelerator::project_dir`.
  std::string project_dir = {};
  /// Names and numbers of checkpoints; its project_dir goes before the other.
  ProjectConfiguration project_configuration = {};

  // The world.

  /// Ranks, store, device, timeout and logger, where the code knows better than
  /// the launcher.
  WorldOptions world = {};
};

}  // namespace accelerate
