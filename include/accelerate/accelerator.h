#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/accelerator_options.h>
#include <accelerate/captured_step.h>
#include <accelerate/checkpoints.h>
#include <accelerate/context_parallel.h>
#include <accelerate/data_loader.h>
#include <accelerate/data_loader_configuration.h>
#include <accelerate/detail/handles.h>
#include <accelerate/detail/object_bytes.h>
#include <accelerate/detail/prepare_items.h>
#include <accelerate/detail/sample_values.h>
#include <accelerate/detail/step_state.h>
#include <accelerate/distributed_type.h>
#include <accelerate/export.h>
#include <accelerate/gradient_state.h>
#include <accelerate/memory.h>
#include <accelerate/micro_step.h>
#include <accelerate/model.h>
#include <accelerate/model_options.h>
#include <accelerate/nested.h>
#include <accelerate/objects.h>
#include <accelerate/optimizer.h>
#include <accelerate/parallel.h>
#include <accelerate/precision.h>
#include <accelerate/profiler.h>
#include <accelerate/progress.h>
#include <accelerate/scheduler.h>
#include <accelerate/state_dict.h>
#include <accelerate/step_options.h>
#include <accelerate/torch_loader.h>
#include <accelerate/tracker.h>
#include <accelerate/trackers.h>
#include <accelerate/weights.h>
#include <accelerate/world.h>

namespace accelerate {

struct MetricRanks;  // metrics.h

namespace detail {
struct AcceleratorAccess;
struct Session;
}  // namespace detail

/// Everything that a training program calls, the same on one process and on
/// many. What only some programs need is behind `world()`, `mesh()`, `state()`,
/// `gradient_state()`, `trackers()` and `checkpoints()`. Construction is
/// collective. A cheap handle: copies refer to the same accelerator. Not
/// thread-safe, but ranks can be threads with an Accelerator each.
///
/// Functions that communicate must be called by all ranks in the same order;
/// they throw DistributedError naming the peer that died or stopped responding.
class ACCELERATE_API Accelerator {
 public:
  /// Connects to the other ranks. Throws a single ConfigError that lists
  /// everything wrong with the options and the launcher's settings, or
  /// DistributedError naming the ranks that did not arrive.
  explicit Accelerator(const AcceleratorOptions& options = {});

  // Preparing.

  /// Prepares modules, optimizers, loaders and schedulers to work across all
  /// ranks, and returns handles in the order given: a tuple, or a single handle
  /// for a single item.
  /// * a module (holder or `shared_ptr`) becomes a Model: it is moved to
  ///   `device()` and receives rank 0's weights; with_options() gives it its
  ///   own options (model_options.h);
  /// * a `torch::optim` optimizer or LRScheduler becomes an Optimizer or
  ///   Scheduler; it is borrowed, so a temporary does not compile. A
  ///   `unique_ptr` (moved in) or `shared_ptr` to one is kept until
  ///   free_memory() or end_training();
  /// * an accelerate::DataLoader (moved in) becomes a DataLoader of this rank's
  ///   share of the data, on `device()`; a `torch::data` loader becomes a
  ///   TorchLoader.
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
  /// Defaults for options that prepared loaders leave unset. Changes apply to
  /// loaders prepared afterwards; all ranks must make the same ones.
  [[nodiscard]] DataLoaderConfiguration& dataloader_config() const;
  /// The next pass over a prepared loader, without the first `num_batches`
  /// batches of each rank.
  template <class Loader>
  SkippedBatches<Loader> skip_first_batches(
      Loader& loader,
      std::int64_t num_batches = 0) const {
    return accelerate::skip_first_batches(loader, num_batches);
  }
  /// Calls `function`, which constructs modules, and returns its result. With
  /// cpu_ram_efficient_loading or zero3_init_flag in the sharding settings, only
  /// rank 0 allocates and initialises them; the others construct them as
  /// init_empty_weights() does, and prepare() gives each rank its shards. Random
  /// generators that agreed across ranks still agree. All ranks must call it.
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
    return begin_micro_step({detail::prepared_of(models)...});
  }
  /// While the returned scope lives, gradients of these models are not averaged
  /// over the ranks. Optimizers still step.
  template <class... Models>
  [[nodiscard]] MicroStep no_sync(const Models&... models) const {
    return MicroStep(session_, {detail::prepared_of(models)...}, false);
  }
  /// Runs `body`, a training loop in which ranks can take different numbers of
  /// steps. A rank that runs out of data shadows the others' collectives with
  /// zeros until no rank has data left; then all take the models, optimizers
  /// and schedules of the ranks that ran longest. All ranks must call it, and
  /// run the same kinds of backward passes in the same order in `body`; other
  /// collectives (gather, say) have no counterpart on ranks that have finished.
  /// Costs a short message per bucket of gradients. Throws ConfigError with
  /// fp16, whose scale all ranks decide together, and when nested.
  void join_uneven_inputs(
      const std::function<void()>& body,
      const JoinOptions& options = {}) const;
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
  /// Number of micro-steps in a window; 1 without accumulation.
  [[nodiscard]] int gradient_accumulation_steps() const;
  /// The current window, the loader being read, and the loss scaler.
  [[nodiscard]] GradientState gradient_state() const;

  /// Makes a step that is replayed as one graph of the device's kernels; see
  /// CapturedStep. `step` is a copyable function object with one signature (no
  /// generic lambda) that takes tensors or nested values with tensors, and
  /// returns such or nothing. What cannot be captured runs plainly, with one
  /// warning that names the reason. Throws ConfigError for options out of
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
  at::Tensor clip_grad_norm_(
      const detail::ModelReference& model,
      double max_norm,
      const ClipNormOptions& options = {}) const;
  /// Clamps every gradient's values to -clip_value .. clip_value; of complex
  /// ones, the real and the imaginary part.
  void clip_grad_value_(
      const std::vector<at::Tensor>& parameters,
      double clip_value) const;
  void clip_grad_value_(const detail::ModelReference& model, double clip_value)
      const;

  /// Autocast at this accelerator's precision for code outside a model's
  /// forward, such as a loss; with precision `no`, switched off. With
  /// `{.enabled = false}`, full precision for a block that needs it.
  [[nodiscard]] AutocastScope autocast() const;
  [[nodiscard]] AutocastScope autocast(const AutocastOptions& options) const;

  // Processes, and how they divide the work.

  /// The ranks, their store and groups, loggers, and functions that run on some
  /// ranks only (world.h).
  [[nodiscard]] const World& world() const;
  /// The ranks as a grid with a dimension for each axis (parallel.h).
  [[nodiscard]] const Mesh& mesh() const;
  /// Facts that do not change: engine, precision, backend (distributed_type.h).
  [[nodiscard]] AcceleratorState state() const;
  // World's functions of the same names.
  /// The device of this rank, to which prepare() moves models.
  [[nodiscard]] at::Device device() const { return world().device(); }
  /// Number of ranks of the world, on all machines.
  [[nodiscard]] int num_processes() const { return world().size(); }
  /// This process's rank in the world, from 0.
  [[nodiscard]] int process_index() const { return world().rank(); }
  /// True on rank 0 of the world.
  [[nodiscard]] bool is_main_process() const {
    return world().is_main_process();
  }
  /// True on the first rank of each node.
  [[nodiscard]] bool is_local_main_process() const {
    return world().is_local_main_process();
  }
  /// Returns when every rank has called it. Throws DistributedError if one does
  /// not within the timeout.
  void wait_for_everyone() const { world().wait_for_everyone(); }
  /// Runs `function` on rank 0 only; the others return at once. What the
  /// function throws reaches the caller on that rank.
  void on_main_process(const std::function<void()>& function) const {
    world().on_main_process(function);
  }
  /// Runs `function` on rank 0 first, then on the others; all ranks must call
  /// it. See World::main_process_first().
  void main_process_first(const std::function<void()>& function) const {
    world().main_process_first(function);
  }
  void print(std::string_view line) const { world().print(line); }
  /// Writes a line to standard output once per node. With values, one for each
  /// `{}`: print("loss {}", loss).
  template <class First, class... Rest>
  void print(
      detail::MessageText<1 + sizeof...(Rest)> message,
      const First& first,
      const Rest&... rest) const {
    world().print(message, first, rest...);
  }

  /// A progress bar on each node's first rank (progress.h), around a range, such
  /// as a loader, around the numbers below a total, or that the caller updates.
  template <class RangeOrTotal>
  [[nodiscard]] auto progress(
      RangeOrTotal&& range_or_total,
      const ProgressOptions& options = {}) const {
    return accelerate::progress(
        std::forward<RangeOrTotal>(range_or_total), progress_options(options));
  }
  void progress(bool, const ProgressOptions& = {}) const = delete;

  // Values of all ranks that read different data, `mesh().batch_group()`: with
  // replicas and shards, every rank; where several ranks share a batch (as with
  // tensor parallelism), they have the same values, and each sample counts once.

  /// Returns the values of all batches, concatenated along dimension 0 in the
  /// order of batch ranks, on every rank.
  template <class T>
  T gather(const T& value) const {
    return accelerate::gather(value, mesh().batch_group());
  }
  template <class T>
  std::vector<T> gather(std::initializer_list<T> values) const {
    return accelerate::gather(values, mesh().batch_group());
  }
  /// Like gather(), without the samples that the loader repeated to fill the
  /// last batch. Call it on every batch, inside the loop over the loader. Ranks
  /// can have different numbers of rows; values that are not rows of the batch
  /// (0-d losses, say) are all kept as long as there are fewer of them than
  /// samples. Lists beside the tensors are treated like them.
  template <class T>
  T gather_for_metrics(const T& value) const {
    return detail::gather_samples(
        value, mesh().batch_group(), loader_remainder());
  }
  /// Gathers a list like gather_for_metrics(): tensors are gathered one by one.
  /// Objects (objects.h), one for each sample, are joined into one list; so are
  /// tensors with `use_gather_object`, which throws ConfigError for a type of
  /// your own that has visit_tensors() but not object_to_bytes().
  template <class T>
  std::vector<T> gather_for_metrics(
      const std::vector<T>& values,
      const GatherForMetricsOptions& options = {}) const {
    return detail::gather_samples(
        values, mesh().batch_group(), loader_remainder(), options);
  }
  /// Returns the sum (the default, as in Accelerate), mean, maximum or other
  /// reduction over all batches, on every rank. The free reduce() takes the
  /// mean unless told otherwise.
  template <class T>
  T reduce(
      const T& value,
      std::optional<ReduceOp> op = ReduceOp::sum,
      double scale = 1.0) const {
    return accelerate::reduce(value, mesh().batch_group(), op, scale);
  }
  /// Pads every tensor along `dim` to the largest size of any batch, so that
  /// they can be gathered.
  template <class T>
  T pad_across_processes(
      const T& value,
      std::int64_t dim = 0,
      double pad_index = 0,
      bool pad_first = false) const {
    return accelerate::pad_across_processes(
        value, mesh().batch_group(), dim, pad_index, pad_first);
  }
  /// Returns this rank's share of a list, a tensor, or a map of them that every
  /// rank has in full. See nested.h. Ranks that share a batch get the same
  /// share.
  template <class T>
  T split_between_processes(const T& items, bool apply_padding = false) const {
    return detail::split_samples(items, mesh().batch_group(), apply_padding);
  }
  /// Asks all ranks to stop at their next check; any rank can call it.
  void set_trigger() const;
  /// True if any rank has set the trigger since the last check that returned
  /// true. Collective.
  [[nodiscard]] bool check_trigger() const;
  /// True on all ranks, in the same call, if the process of any rank has been
  /// told to end (AcceleratorOptions::preemption_signals). Call it at the end
  /// of every step, or every few steps, on all ranks alike; if it is true, save
  /// and leave the loop within the time that the launcher (`--grace_seconds`),
  /// Slurm or Kubernetes grants. Communicates one number. From the first call
  /// on, these signals no longer end the process.
  [[nodiscard]] bool check_preemption() const;

  /// For metrics (metrics.h): `Mean loss(accelerator)`.
  operator MetricRanks() const;

  // Trackers and the run's journal. Functions act on the main process only; a
  // call costs about as much as copying what is logged, since another thread
  // passes it on. Pass steps, so that a resumed run can tell what it repeats.

  /// Creates and starts the trackers of AcceleratorOptions::log_with, and
  /// passes them `config`; an empty one as well, but not std::nullopt.
  /// `init_kwargs` holds settings by tracker name. Throws whatever a tracker
  /// that cannot start throws, and ConfigError if called twice.
  void init_trackers(
      const std::string& project_name,
      const LogValues& config,
      const TrackerKwargs& init_kwargs = {}) const;
  void init_trackers(
      const std::string& project_name,
      std::nullopt_t config = std::nullopt,
      const TrackerKwargs& init_kwargs = {}) const;
  /// Logs values of a step to the journal and all trackers. `log_kwargs` holds
  /// options by tracker name.
  void log(
      LogValues values,
      std::optional<std::int64_t> step = std::nullopt,
      const TrackerKwargs& log_kwargs = {}) const;
  /// Returns the tracker of that name once it has received everything logged so
  /// far. On other ranks, and without trackers, returns one whose functions are
  /// no-ops. Do not log while using it: trackers are not thread-safe. Throws
  /// ConfigError if no tracker has that name.
  [[nodiscard]] std::shared_ptr<GeneralTracker> get_tracker(
      const std::string& name) const;
  /// Images, tables, figures, files, and the trackers themselves (trackers.h).
  [[nodiscard]] Trackers trackers() const;

  // Checkpoints, and weights in files.

  /// Writes everything that is prepared or registered, so that training resumes
  /// exactly after load_state(): weights and buffers, optimizers, schedules,
  /// the loss scaler, loader positions, and every rank's random states. All
  /// ranks must call it.
  /// Writes to `output_dir` or, without one and with
  /// automatic_checkpoint_naming, to the project's checkpoints. The checkpoint
  /// appears under its name once all of it is durable; a crash leaves the
  /// previous contents. Older checkpoints beyond total_limit are then deleted.
  /// Throws ConfigError for a name that is taken, CheckpointError naming the
  /// rank that could not write and why, DistributedError if ranks made
  /// different calls.
  SaveTicket save_state(
      const std::filesystem::path& output_dir,
      const SaveStateOptions& options = {}) const;
  SaveTicket save_state(const SaveStateOptions& options = {}) const;
  /// Restores everything prepared and registered from a checkpoint: the newest
  /// complete one, or the one in `input_dir`. All ranks must call it; there can
  /// be more or fewer than when it was saved. Everything is compared first: a
  /// single CheckpointError lists all mismatches, and then nothing was loaded.
  void load_state(
      const std::filesystem::path& input_dir,
      const LoadStateOptions& options = {}) const;
  void load_state(const LoadStateOptions& options = {}) const;
  /// Loads the newest complete checkpoint of the project, if there is one;
  /// returns whether there was. Needs automatic_checkpoint_naming. All ranks
  /// must call it. Throws like load_state(), and also if there are checkpoints
  /// but all of them are damaged.
  bool resume(const LoadStateOptions& options = {}) const;
  /// Adds objects, which are borrowed, to checkpoints, in this order.
  template <class... Objects>
    requires(!(std::is_convertible_v<Objects&, std::string_view> || ...))
  void register_for_checkpointing(Objects&... objects) const {
    (register_object(detail::registered_state(objects)), ...);
  }
  /// Adds a variable, which is borrowed, to checkpoints, in the same order. All
  /// ranks must register it, under the name that it was saved with; rank 0's
  /// value is saved, and every rank loads it. A tensor is loaded in place if its
  /// shape and dtype are the saved ones; otherwise the variable gets a new one
  /// on the same device.
  template <CheckpointValue T>
  void register_for_checkpointing(const std::string& name, T& value) const {
    register_object(detail::registered_state(name, value));
  }
  /// Writes an object to one file on rank 0, or, with save_on_each_node, on each
  /// node's first rank; other ranks return at once. The file, which appears once
  /// it is complete and durable, is torch.save's, or, with `safe_serialization`,
  /// for states of tensors, safetensors; names in nested states are
  /// "outer.inner". Throws ConfigError for what the format cannot hold, Error if
  /// the file cannot be written.
  void save(
      const at::Tensor& tensor,
      const std::filesystem::path& file,
      bool safe_serialization = false) const;
  void save(
      const StateDict& state,
      const std::filesystem::path& file,
      bool safe_serialization = false) const;
  void save(
      const WeightList& weights,
      const std::filesystem::path& file,
      bool safe_serialization = false) const;
  /// Writes get_state_dict(model); all ranks must call it.
  void save(
      const detail::ModelReference& model,
      const std::filesystem::path& file,
      bool safe_serialization = false) const;
  /// Writes a prepared model's weights for other programs (weights.h) on rank
  /// 0, or, with save_on_each_node, on each node's first rank. All ranks must
  /// call it; if one cannot write, all throw. A sharded model is gathered piece
  /// by piece: no rank ever holds a full tensor of it.
  void save_model(
      const detail::ModelReference& model,
      const std::filesystem::path& directory,
      const SaveModelOptions& options = {}) const;
  /// Reads weight files (weights.h) into a prepared model; all ranks must call
  /// it. If the model is sharded, each rank reads its own shards.
  void load_model(
      const detail::ModelReference& model,
      const std::filesystem::path& path,
      const LoadModelOptions& options = {}) const;
  /// Returns the model's tensors by name: its own, or, for a sharded model,
  /// those that `options` select. All ranks must call it.
  [[nodiscard]] WeightList get_state_dict(
      const detail::ModelReference& model,
      const StateDictOptions& options = {}) const;
  /// The project's checkpoints, and hooks of saves and loads (checkpoints.h).
  [[nodiscard]] Checkpoints checkpoints() const;
  /// The user's own module.
  template <class M>
  static const std::shared_ptr<M>& unwrap_model(const Model<M>& model) {
    return model.module();
  }

  // Profiling, settings, and the end.

  /// Records what this rank does, from here to the result's stop(), as
  /// `options` say (by default AcceleratorOptions::profile). Only one profile
  /// at a time can record a thread. All ranks must call it: with
  /// output_trace_dir, their clocks are compared.
  [[nodiscard]] Profile profile() const;
  [[nodiscard]] Profile profile(const ProfileOptions& options) const;

  /// Every option in force, one per line, with its value and where it comes
  /// from. Settings of an engine (FSDP, DeepSpeed, Megatron-LM) that is not in
  /// use are listed only if they were given, as "without effect". NCCL's own
  /// variables, which it reads itself, come last.
  [[nodiscard]] std::string explain_settings() const;
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
  /// Ends training: finishes the trackers and the journal, waits for all ranks,
  /// so that none closes its connections while another still needs them, then
  /// calls free_memory(). Destroying the Accelerator finishes trackers and
  /// journal as well, but does not wait, so that a failing rank ends.
  void end_training() const;
  /// Another name of end_training().
  void finish() const { end_training(); }

 private:
  friend struct detail::AcceleratorAccess;

  Accelerator(std::shared_ptr<detail::Session> session, detail::StepState* step)
      : session_(std::move(session)), step_(step) {}

  detail::PrepareResult apply(const detail::PrepareRequest& request) const;
  [[nodiscard]] detail::LoaderContext loader_context() const;
  [[nodiscard]] detail::ModelConstruction begin_construction() const;
  [[nodiscard]] MicroStep begin_micro_step(
      std::initializer_list<detail::PreparedModel*> models) const;
  [[nodiscard]] ProgressOptions progress_options(
      const ProgressOptions& options) const;
  [[nodiscard]] std::int64_t loader_remainder() const;
  void register_object(detail::AnyStateful object) const;

  detail::KeptPtr<detail::Session> session_;
  detail::StepState* step_;  // the session's
};

}  // namespace accelerate
