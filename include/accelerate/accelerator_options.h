#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/checkpoint.h>
#include <accelerate/data_loader_configuration.h>
#include <accelerate/fp8.h>
#include <accelerate/grad_scaler.h>
#include <accelerate/parallel.h>
#include <accelerate/precision.h>
#include <accelerate/profiler.h>
#include <accelerate/random.h>
#include <accelerate/tracker.h>
#include <accelerate/world.h>

namespace accelerate {

/// How micro-steps add up to a step.
struct GradientAccumulationOptions {
  /// AcceleratorOptions::gradient_accumulation_steps, where Accelerate's plugin
  /// has it. Setting both, to different values above 1, is an error.
  std::optional<int> num_steps = std::nullopt;
  /// A loader's last batch ends the window, so that no gradient is carried into
  /// the next epoch. False: windows continue across epochs, so that all steps
  /// have equally many micro-steps.
  bool sync_with_dataloader = true;
  /// Average over the ranks in every micro-step, not only in a window's last:
  /// more traffic, but no rank keeps unaveraged gradients. For programs that
  /// read gradients within a window.
  bool sync_each_batch = false;
  /// Divide the losses of a window cut short by a loader's end by the full
  /// number of micro-steps, as Accelerate does, so that the step counts for
  /// less. If false, they are divided by the true number.
  bool divide_by_full_window = false;
};

/// When prepared schedules step.
struct SchedulerOptions {
  /// Step only if the optimizer did. If false, step at every call, for
  /// schedules that count micro-steps.
  bool step_with_optimizer = true;
  /// Step once per process for each optimizer step, for schedules that count
  /// the steps of a single process. As in Accelerate, where this is the
  /// default, `split_batches` in `dataloader_config` makes it one step.
  bool step_with_processes = false;
};

/// Settings given in code. An unset field takes the launcher's value (from its
/// flags, the environment or the config file), else the default.
struct AcceleratorOptions {
  // Precision.

  /// Autocast around every prepared model's forward; with `fp16`, losses are
  /// scaled as well; with `fp8`, linear layers compute in float8, and
  /// everything else as with `bf16`. Unset without a launcher: `no`.
  std::optional<Precision> mixed_precision = std::nullopt;
  /// How layers compute in float8; used with `fp8` only. Unset: the recipe of
  /// the launcher's `fp8_backend`, else torchao's.
  std::optional<FP8Recipe> fp8_recipe = std::nullopt;
  /// torch::scaled_dot_product_attention in forwards of prepared models takes
  /// queries, keys and values in float8 (e4m3), regardless of the linear
  /// layers' recipe; its own products, softmax and gradients are in high
  /// precision, and gradients pass the casts unchanged. Used with `fp8` only.
  Float8Attention fp8_attention = Float8Attention::none;
  /// Number of optimizer steps between reports in the run's journal on what
  /// casts to float8 lose (fractions of values that become 0 or are clipped,
  /// scales) and how far products are from those in bf16; 0: never. A step with
  /// a report takes several times as long as others, and keeps layers' inputs
  /// as bf16 does. Used with `fp8` only.
  std::int64_t fp8_statistics_interval = 0;
  /// Settings of `fp16` and `bf16` in the forward pass.
  AutocastOptions autocast = {};
  /// How losses are scaled. Used with `fp16` only.
  GradScalerOptions grad_scaler = {};
  /// Parameters in bf16 or fp16 get fp32 master copies that the optimizer steps
  /// on; after each step they are rounded into the model. Takes half the memory
  /// of an fp32 model in forward and backward, with nearly the same results.
  bool master_weights = false;

  // The step.

  /// Micro-steps whose gradients are averaged before the optimizer steps; used
  /// by `accumulate`. Raise it if the batch that you want does not fit into
  /// memory. Unset without a launcher: 1.
  std::optional<int> gradient_accumulation_steps = std::nullopt;
  /// How windows of accumulated micro-steps are counted and divided.
  GradientAccumulationOptions gradient_accumulation = {};
  /// When prepared schedules step, and how far.
  SchedulerOptions scheduler = {};
  /// Linear layers of prepared models add their bias within the product for
  /// inputs of any number of dimensions, as torch.nn.functional.linear does in
  /// Python. LibTorch's C++ modules add it afterwards for inputs of other than
  /// two dimensions, under autocast in single precision. Results differ by
  /// rounding. Layers that ranks split still add it afterwards. False: as in
  /// LibTorch's modules.
  bool fused_linear = true;
  /// With mixed precision and windows of several micro-steps, autocast casts
  /// each weight once per window rather than once per forward, and the casts
  /// are freed when an optimizer steps. They take half the memory of the model
  /// between a backward and the next forward; the peak is that of a forward.
  /// A weight that is changed in place within a window is cast anew; one that
  /// is changed through data(), which LibTorch does not track, is not. False:
  /// casts end with their forward, for programs that make such changes.
  bool keep_casts = true;
  /// Prepared optimizers of exactly torch::optim::AdamW, Adam, SGD, Adagrad and
  /// RMSprop take their steps with kernels for all parameters of a group,
  /// device and dtype, rather than about ten operators for each parameter, on
  /// their own options and state. Results differ by rounding. False: their
  /// own step() runs.
  bool fused_optimizers = true;

  // Loaders.

  /// Defaults for options that prepared loaders leave unset.
  DataLoaderConfiguration dataloader_config = {};
  /// The generators that take rank 0's state when a pass over a prepared loader
  /// begins. RNGType::generator, the default as in Accelerate, affects the
  /// order of torch::data loaders (torch_loader.h); the order of a DataLoader
  /// depends only on seed and epoch, so that ranks agree anyway. RNGType::torch
  /// and RNGType::device are collective and make ranks draw the same numbers
  /// (for dropout, say) afterwards; they cannot be used inside
  /// join_uneven_inputs().
  std::vector<RNGType> rng_types = {RNGType::generator};

  // Devices, ranks and how they share the work.

  /// Move models and batches to `Accelerator::device()`. False: they stay where
  /// they are, unless the model's options (with_options), the loader's
  /// (DataLoaderOptions) or prepare_data_loader() say otherwise.
  bool device_placement = true;

  /// True: use the CPU even if there is an accelerator. False: use the
  /// accelerator even if the launcher was told to use the CPU. Unset: as the
  /// launcher says (`--cpu`).
  std::optional<bool> cpu = std::nullopt;
  /// How ranks divide the work: replicas, shards and the other axes.
  ParallelOptions parallel = {};
  /// Keep freed memory of CPU tensors of 1 MiB and more for tensors of the same
  /// size, up to the size of the prepared models' gradients on this rank, and
  /// put tensors of 16 KiB to 1 MiB into an arena, while these models live.
  /// Steps are faster and memory is less fragmented, but the change lasts until
  /// the process ends: LibTorch's CPU allocator is replaced by one that
  /// forwards all other requests, glibc maps every block of 128 KiB and more
  /// (`mallopt`), and address space is reserved for as much memory as the
  /// machine has. If the program has registered its own allocator, that one
  /// stays and nothing is changed. The free pages of glibc's heap are returned
  /// to the system when a model has been prepared. Used only if the device is
  /// the CPU. Unset: for models sharded over several ranks or kept in files,
  /// unless `MALLOC_MMAP_THRESHOLD_` is in the environment. False: LibTorch's
  /// allocator and glibc are left alone.
  std::optional<bool> keep_freed_blocks = std::nullopt;
  /// The signals that announce that this process will soon be ended; see
  /// Accelerator::check_preemption(). Empty: SIGTERM, which launchers,
  /// Kubernetes and Slurm send; Slurm can also be asked to send another one
  /// (`--signal=USR1@60`).
  std::vector<int> preemption_signals = {};

  // Results.

  /// The directory of a program's results.
  std::string project_dir = {};
  /// Names and numbers of checkpoints; its project_dir overrides the above.
  ProjectConfiguration project_configuration = {};

  // Trackers and the journal.

  /// Trackers of init_trackers(): names ("tensorboard", "wandb", "trackio",
  /// "comet_ml", "aim", "mlflow", "clearml", "dvclive", "swanlab", and those of
  /// register_tracker_class()), "all", or objects.
  std::vector<LogWith> log_with = {};
  /// Also write what is logged to `<logging_dir>/<run>/journal`, from which it
  /// can be watched, compared, and replayed to any tracker. Without logging_dir
  /// and project_dir, the journal is in "./runs".
  bool journal = true;
  /// How often the journal gets figures of the machine (processors, memory,
  /// disk, network, devices, steps per second), and each rank's step, speed and
  /// memory, which the ranks leave in the store. A sample takes about 0.1 ms on
  /// a background thread. 0: never.
  std::chrono::milliseconds figures_interval = std::chrono::seconds(5);
  /// Show progress bars on each node's first rank once save_state(),
  /// load_state(), save_model() or load_model() has taken longer than 2 s.
  /// Asynchronous saves have none.
  bool progress_bars = true;
  /// The name of the run. Unset: ACCELERATE_RUN_NAME or `--run_name`, else the
  /// project's name (before init_trackers(), the program's) with date, time and
  /// four hexadecimal digits. An existing name continues that run's journal.
  std::optional<std::string> run_name = std::nullopt;

  // Profiling.

  /// What profile() records unless it is told otherwise.
  std::optional<ProfileOptions> profile = std::nullopt;

  // The world.

  /// Ranks, store, device, timeout and logger, to override the launcher's.
  WorldOptions world = {};
};

}  // namespace accelerate
