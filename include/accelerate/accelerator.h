#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/accelerator_checkpoints.h>
#include <accelerate/accelerator_collectives.h>
#include <accelerate/accelerator_loaders.h>
#include <accelerate/accelerator_options.h>
#include <accelerate/accelerator_processes.h>
#include <accelerate/captured_step.h>
#include <accelerate/context_parallel.h>
#include <accelerate/data_loader.h>
#include <accelerate/data_loader_configuration.h>
#include <accelerate/deepspeed.h>
#include <accelerate/detail/planned_step.h>
#include <accelerate/detail/prepare_items.h>
#include <accelerate/detail/step_state.h>
#include <accelerate/distributed_type.h>
#include <accelerate/export.h>
#include <accelerate/full_parameters.h>
#include <accelerate/grad_scaler.h>
#include <accelerate/gradient_state.h>
#include <accelerate/memory.h>
#include <accelerate/memory_plan.h>
#include <accelerate/micro_step.h>
#include <accelerate/model.h>
#include <accelerate/model_options.h>
#include <accelerate/nested.h>
#include <accelerate/objects.h>
#include <accelerate/optimizer.h>
#include <accelerate/parallel.h>
#include <accelerate/precision.h>
#include <accelerate/profiler.h>
#include <accelerate/scheduler.h>
#include <accelerate/step_options.h>
#include <accelerate/torch_loader.h>
#include <accelerate/world.h>

namespace accelerate {

namespace detail {
struct AddedTechnique;
}  // namespace detail

/// Everything that a training program calls, the same on one process and on
/// many. Functions for processes, loaders, values across ranks, trackers and
/// checkpoints are in base classes (accelerator_processes.h,
/// accelerator_loaders.h, accelerator_collectives.h, accelerator_tracking.h,
/// accelerator_checkpoints.h). Construction is collective. A cheap handle:
/// copies refer to the same accelerator. Not thread-safe, but ranks can be
/// threads with an Accelerator each.
///
/// Functions that communicate must be called by all ranks in the same order;
/// they throw DistributedError naming the peer that died or stopped responding.
class ACCELERATE_API Accelerator : public AcceleratorCheckpoints {
 public:
  /// Connects to the other ranks. Throws a single ConfigError that lists
  /// everything wrong with the options and the launcher's settings, or
  /// DistributedError naming the ranks that did not arrive.
  explicit Accelerator(const AcceleratorOptions& options = {});
  /// As above with additional techniques, for the library's own tests.
  Accelerator(
      const AcceleratorOptions& options,
      const std::vector<detail::AddedTechnique>& added);

  // Preparing.

  /// Prepares modules, optimizers, loaders and schedulers to work across all
  /// ranks, and returns handles in the order given: a tuple, or a single handle
  /// for a single item.
  ///
  /// * a module (holder or `shared_ptr`) becomes a Model: it is moved to
  ///   `device()` and receives rank 0's weights; with_options() gives it its
  ///   own options (model_options.h);
  /// * a `torch::optim` optimizer or LRScheduler becomes an Optimizer or
  ///   Scheduler; it is borrowed, so a temporary does not compile. A
  ///   `unique_ptr` (moved in) or `shared_ptr` to one is kept until
  ///   free_memory() or finish();
  /// * an accelerate::DataLoader (moved in) becomes a DataLoader of this rank's
  ///   share of the data, on `device()`; a `torch::data` loader becomes a
  ///   TorchLoader.
  ///
  /// Can be called several times. Throws ConfigError, before changing anything,
  /// if an item cannot be prepared.
  template <class... Items>
  auto prepare(Items&&... items) const {
    static_assert(sizeof...(Items) > 0, "prepare() needs something to prepare");
    if constexpr ((detail::must_be_preparable<Items>() && ...)) {
      detail::PrepareRequest request;
      (detail::collect_item(request, items), ...);
      detail::PrepareResult result = apply(request);
      return detail::make_handles(result, std::forward<Items>(items)...);
    }
  }

  /// `prepare(with_options(model, options))`; `{.evaluation_mode = true}` for a
  /// model that is never trained.
  template <detail::PreparableModule Module>
  auto prepare_model(Module model, const ModelOptions& options = {}) const {
    return prepare(with_options(std::move(model), options));
  }
  /// `prepare(optimizer)`.
  template <detail::OptimizerLike O>
  Optimizer prepare_optimizer(O& optimizer) const {
    return prepare(optimizer);
  }
  /// `prepare(scheduler)`. It steps with its own optimizer if that is prepared,
  /// otherwise with all of them.
  template <detail::SchedulerLike S>
  Scheduler prepare_scheduler(S& scheduler) const {
    return prepare(scheduler);
  }
  /// `prepare(std::move(loader))`, with options. To slice rounds your own way,
  /// see DataLoader::slice_fn_for_dispatch.
  template <class Loader>
    requires detail::PreparableLoader<std::remove_cvref_t<Loader>>
  auto prepare_data_loader(
      Loader&& loader,
      const PrepareDataLoaderOptions& options = {}) const {
    detail::PrepareResult result = apply({});
    result.loader_context = [this, options] {
      detail::LoaderContext context = loader_context();
      context.device_placement = options.device_placement;
      return context;
    };
    return detail::make_handle(result, std::forward<Loader>(loader));
  }

  /// Calls `function`, which constructs modules, and returns its result. With
  /// cpu_ram_efficient_loading or zero3_init_flag (on by default in DeepSpeed's
  /// stage 3) in the sharding settings, only rank 0 allocates and initialises
  /// them; the other ranks construct them as init_empty_weights() does, and
  /// prepare() gives each rank its shards. Random generators that agreed across
  /// ranks before still agree afterwards. All ranks must call it.
  template <class Function>
  auto init_model(Function&& function) const {
    detail::ModelConstruction construction = begin_construction();
    auto modules = std::forward<Function>(function)();
    construction.finish();
    return modules;
  }

  // Training steps.

  /// Replaces `loss.backward()`: divides by the window's length (its true
  /// length, if the end of a loader cuts it short), scales with fp16, and
  /// averages gradients over the ranks when the window ends. `loss` is a
  /// scalar, this rank's mean. Throws ConfigError if it is undefined, or if
  /// `num_items` is negative or given in only some micro-steps of a window.
  void backward(const at::Tensor& loss) const {
    if (step_->is_direct && loss.defined() && loss.numel() == 1 &&
        loss.requires_grad()) {
      loss.backward();
      ++step_->num_backwards;
    } else {
      backward(loss, BackwardOptions());
    }
  }
  void backward(const at::Tensor& loss, const BackwardOptions& options) const;
  template <class Number>
    requires std::is_arithmetic_v<Number>
  void backward(Number, const BackwardOptions& = {}) const {
    static_assert(
        detail::kNever<Number>,
        "backward() takes the loss itself, not its value: pass the tensor, "
        "without item()");
  }

  /// Runs backward and step in one, for a prepared optim::Lomo or AdaLomo: each
  /// parameter is updated as soon as its gradient is computed and averaged over
  /// the ranks, and the gradient is freed. Pass the optimizer if several are
  /// prepared. Throws ConfigError if none is, inside a window of several
  /// micro-steps, for sharded models, and with fp16.
  void lomo_backward(const at::Tensor& loss, double learning_rate) const;
  void lomo_backward(
      const at::Tensor& loss,
      double learning_rate,
      const Optimizer& optimizer) const;

  /// Begins a micro-step of a window of `gradient_accumulation_steps()`, for
  /// these models; a loader's last batch ends the window early. Keep the
  /// returned scope alive for the whole micro-step, including backward and
  /// step.
  template <class... Models>
  [[nodiscard]] MicroStep accumulate(const Models&... models) const {
    static_assert(
        (detail::kIsModel<Models> && ...),
        "accumulate() takes prepared models: give it what prepare() returned");
    if constexpr ((detail::kIsModel<Models> && ...)) {
      return begin_micro_step({models.prepared().get()...});
    } else {
      return begin_micro_step({});
    }
  }
  /// While the returned scope lives, gradients of these models are not averaged
  /// over the ranks. Optimizers still step.
  template <class... Models>
  [[nodiscard]] MicroStep no_sync(const Models&... models) const {
    static_assert(
        (detail::kIsModel<Models> && ...),
        "no_sync() takes prepared models: give it what prepare() returned");
    if constexpr ((detail::kIsModel<Models> && ...)) {
      return MicroStep(session_, {models.prepared().get()...}, false);
    } else {
      return MicroStep(session_, {}, false);
    }
  }
  /// For programs ported from Accelerate: the returned scope has no effect. In
  /// Accelerate, a forward inside no_sync() turns averaging off for its
  /// backward, which this scope undoes. Here, only the place of the backward
  /// counts: outside no_sync() its gradients are averaged, wherever the forward
  /// ran.
  template <class M>
  [[nodiscard]] MicroStep trigger_sync_in_backward(
      const Model<M>& model) const {
    return MicroStep(session_, {model.prepared().get()}, true);
  }
  /// Runs `body`, a training loop in which ranks can take different numbers of
  /// steps. A rank that runs out of data shadows the others' collectives with
  /// zeros until no rank has data left; then all take the models, optimizers
  /// and schedules of the ranks that ran longest. All ranks must call it, and
  /// run the same kinds of backward passes in the same order in `body`; other
  /// collectives (gather, say) have no counterpart on ranks that have finished.
  /// Costs a short message per bucket of gradients.
  ///
  /// Throws ConfigError with fp16, whose scale all ranks decide together, and
  /// when nested.
  void join_uneven_inputs(
      const std::function<void()>& body,
      const JoinOptions& options = {}) const;
  /// While the returned scope lives, the module's parameters are full, in the
  /// dtype on which optimizers step (fp32 under bf16 or fp16), and can be read
  /// or changed; changes must be the same on all ranks, and are kept exactly.
  /// All ranks must call it, outside forward and backward. Forwards of the
  /// prepared model inside the scope compute in their usual precision, for
  /// which a copy of the parameters is rounded; the module's own forward gets
  /// the parameters as they are. Needed for sharded parameters and
  /// master_weights only; others are always full.
  template <class M>
  [[nodiscard]] FullParameters full_parameters(const Model<M>& model) const {
    return unshard_parameters(*model.prepared());
  }
  /// While the returned scope lives, `buffers` hold this rank's positions of
  /// the sequence, which is divided among the ranks along `context`, and
  /// torch's scaled_dot_product_attention attends over the whole sequence; see
  /// ContextParallelScope. Needed for forward and loss. Warns once if context
  /// is 1. Shift labels first.
  [[nodiscard]] ContextParallelScope maybe_context_parallel(
      const std::vector<at::Tensor>& buffers,
      const std::vector<std::int64_t>& buffer_seq_dims,
      const std::vector<at::Tensor>& no_restore_buffers = {},
      const ContextParallelOptions& options = {}) const;
  /// True if this micro-step ends a window, and always outside accumulate().
  [[nodiscard]] bool sync_gradients() const;
  [[nodiscard]] int gradient_accumulation_steps() const;
  /// Decides, until the next accumulate(), whether optimizers and schedules
  /// step. Whether a backward is averaged is up to accumulate() and no_sync().
  void set_sync_gradients(bool sync_gradients) const;
  /// Changes the length of future windows; the next accumulate() begins one.
  /// Throws ConfigError in the middle of a window, and for values below 1.
  void set_gradient_accumulation_steps(int num_steps) const;
  /// A view of the current window and of the loader being read.
  [[nodiscard]] GradientState gradient_state() const;
  /// The DeepSpeed configuration in force, as JSON; empty without one.
  [[nodiscard]] const std::string& deepspeed_config() const;

  /// Makes a step that is replayed as one graph of the device's kernels:
  ///
  ///     auto step = accelerator.capture([&](torch::Tensor x, torch::Tensor y) {
  ///       auto loss = criterion(model(x), y);
  ///       accelerator.backward(loss);
  ///       optimizer.step();
  ///       optimizer.zero_grad();
  ///       return loss;
  ///     });
  ///     for (auto& [x, y] : loader) auto loss = step(x, y);
  ///
  /// `step` is a copyable function object with one signature (no generic
  /// lambda) that takes tensors or nested values with tensors, and returns such
  /// or nothing. Models, optimizers and schedules that it uses must be
  /// prepared. See CapturedStep for what it may do, and CapturedStep::reason()
  /// for why a call ran plainly. What cannot be captured runs plainly, with
  /// one warning that names the reason. Throws ConfigError for options out of
  /// range.
  template <class Step>
  [[nodiscard]] auto capture(Step step, const CaptureOptions& options = {})
      const {
    return detail::make_captured_step(
        session_, std::function(std::move(step)), options);
  }

  // Gradients and precision.

  /// With fp16, divides gradients by the scale ahead of the step, for programs
  /// that read or change them. Clipping and steps do so themselves. Collective.
  void unscale_gradients() const;
  void unscale_gradients(const Optimizer& optimizer) const;
  void unscale_gradients(const std::vector<Optimizer>& optimizers) const;
  /// The loss scaler; empty without fp16.
  [[nodiscard]] const std::optional<GradScaler>& scaler() const;
  /// True if any optimizer skipped its last step because of an infinite
  /// gradient.
  [[nodiscard]] bool optimizer_step_was_skipped() const;

  /// Scales the gradients so that their norm, over the full gradients of all
  /// these parameters, is at most `max_norm`. Call it on all ranks when
  /// `sync_gradients()` is true, between backward and step. Returns the norm
  /// before clipping, as a real 0-d tensor on the device, without waiting for
  /// it: fp64 if a gradient is, otherwise fp32. Complex gradients count by
  /// their absolute values.
  at::Tensor clip_grad_norm_(
      const std::vector<at::Tensor>& parameters,
      double max_norm,
      const ClipNormOptions& options = {}) const;
  template <class M>
  at::Tensor clip_grad_norm_(
      const Model<M>& model,
      double max_norm,
      const ClipNormOptions& options = {}) const {
    return clip_grad_norm_(model.parameters(), max_norm, options);
  }
  /// Clamps every gradient's values to -clip_value .. clip_value; of complex
  /// ones, the real and the imaginary part.
  void clip_grad_value_(
      const std::vector<at::Tensor>& parameters,
      double clip_value) const;
  template <class M>
  void clip_grad_value_(const Model<M>& model, double clip_value) const {
    clip_grad_value_(model.parameters(), clip_value);
  }

  /// Autocast at this accelerator's precision for code outside a model's
  /// forward, such as a loss; with precision `no`, switched off. With
  /// `{.enabled = false}`, full precision for a block that needs it.
  [[nodiscard]] AutocastScope autocast() const;
  [[nodiscard]] AutocastScope autocast(const AutocastOptions& options) const;

  // Models.

  /// As in module_tensors.h; prepare() does not move such models.
  [[nodiscard]] bool verify_device_map(const torch::nn::Module& module) const;
  /// The user's own module.
  template <class M>
  static const std::shared_ptr<M>& unwrap_model(const Model<M>& model) {
    return model.module();
  }

  // Memory.

  /// Estimates the memory that training `module` takes per rank, for every way
  /// of splitting it, before it is prepared: `loss_of(num_samples)` is run
  /// forward and backward on the CPU with 2 and with 4 samples, and its memory
  /// is extrapolated and simulated for each way. Random states, gradients and
  /// the module are left as they were. No communication. Throws ConfigError if
  /// the module is not on the CPU or the two runs differ in more than sizes.
  template <detail::PreparableModule M>
  [[nodiscard]] MemoryPlan plan_memory(
      M module,
      const std::function<at::Tensor(std::int64_t num_samples)>& loss_of,
      const MemoryPlanOptions& options = {}) const {
    return detail::plan_memory(world(), *module, loss_of, options);
  }
  /// The same with the mean of `module->forward(inputs...)` as the loss.
  /// `inputs` is a tensor or a tuple of them, with samples along dimension 0,
  /// which are repeated as needed.
  template <detail::PreparableModule M, detail::ExampleInputs Inputs>
  [[nodiscard]] MemoryPlan plan_memory(
      M module,
      const Inputs& inputs,
      const MemoryPlanOptions& options = {}) const {
    const detail::ForwardLoss<M, Inputs> loss_of{module, inputs};
    return plan_memory(module, loss_of, loss_of.with_batch_size(options));
  }

  // Profiling.

  /// Records what this rank does, from here to the result's stop(), as
  /// `options` say (by default AcceleratorOptions::profile). Only one profile
  /// at a time can record a thread. All ranks must call it: with
  /// output_trace_dir, their clocks are compared.
  [[nodiscard]] Profile profile() const;
  [[nodiscard]] Profile profile(const ProfileOptions& options) const;

  // Ending.

  /// Forgets everything that was prepared, and frees the strategies' memory,
  /// such as communication buckets; the count of micro-steps restarts. Earlier
  /// handles throw ConfigError when used afterwards (a loader when a pass
  /// begins); modules and optimizers can be prepared again. Registered objects
  /// and hooks stay.
  void free_memory() const;
  /// Also empties these objects, as release_memory() does.
  template <class First, class... More>
  void free_memory(First& first, More&... more) const {
    free_memory();
    release_memory(first, more...);
  }
  /// Accelerate's other name for `free_memory()`.
  template <class... Objects>
  void clear(Objects&... objects) const {
    free_memory(objects...);
  }
  /// Ends training: waits for all ranks, so that none closes its connections
  /// while another still needs them, then calls `free_memory()`. Destructors do
  /// neither, so that a failing rank does not wait.
  void finish() const;
  /// Finishes the trackers and the journal, then calls finish(). Nothing is
  /// lost without it: destroying the Accelerator finishes them, too.
  void end_training() const;

  /// Every option in force, one per line, with its value and where it comes
  /// from: code, a flag, an environment variable, a file, the default, or other
  /// options. Settings of an engine (FSDP, DeepSpeed, Megatron-LM) that is not
  /// in use are listed only if they were given, as "without effect".
  [[nodiscard]] std::string explain_settings() const;

 private:
  detail::PrepareResult apply(const detail::PrepareRequest& request) const;
  [[nodiscard]] detail::LoaderContext loader_context() const;
  [[nodiscard]] MicroStep begin_micro_step(
      std::initializer_list<detail::PreparedModel*> models) const;
  [[nodiscard]] FullParameters unshard_parameters(
      detail::PreparedModel& model) const;
  [[nodiscard]] detail::ModelConstruction begin_construction() const;

  detail::StepState* step_;  // the session's
};

}  // namespace accelerate
