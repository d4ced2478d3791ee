#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <accelerate/accelerator.h>
#include <accelerate/data_loader_configuration.h>
#include <accelerate/detail/step_parts.h>
#include <accelerate/detail/step_state.h>
#include <accelerate/grad_scaler.h>
#include <accelerate/parallel.h>
#include <accelerate/precision.h>
#include <accelerate/random.h>
#include <accelerate/world.h>

#include "base/process/signal_flag.h"
#include "checkpoint/run/checkpoints.h"
#include "comm/agreement/rank_agreement.h"
#include "config/settings.h"
#include "engines/read_request.h"
#include "gate/kept_casts.h"
#include "gate/layer_products.h"
#include "optim/optimizers/fused.h"
#include "parallel/join_round.h"
#include "parallel/plan/plan.h"
#include "parallel/strategy_list.h"
#include "params/parameter_table.h"
#include "track/run_tracking.h"
#include "train/capture/device_graph.h"
#include "train/models/module_watch.h"
#include "train/optimizers/schedule_adapter.h"
#include "train/optimizers/step_watch.h"
#include "train/settings/settings_report.h"
#include "train/step/step_clock.h"
#include "train/step/step_counts.h"

namespace accelerate::detail {

struct Session;
struct StagedModel;
class CapturedRun;
class DeferredStep;
class PlainBackwards;
class StepGraphs;

struct PreparedModel {
  /// See the function of this name. A model gets no strategy, dtype or missing
  /// value after it was prepared; a profile turns this off.
  bool runs_directly = false;
  Session* session = nullptr;  // its owner
  /// Null after free_memory().
  std::shared_ptr<torch::nn::Module> module;
  /// Where the module's tensors are.
  at::Device device = at::kCPU;
  /// True if it was prepared without gradient averaging.
  bool evaluation_mode = false;
  /// The session's mesh, or the model's own.
  Mesh mesh;
  ParameterTable table = {};
  StrategyList strategies = {};
  /// The layers whose products include their bias; null if none do.
  std::unique_ptr<LayerProducts> layer_products = nullptr;
  /// Set if forwards run under autocast.
  std::optional<c10::ScalarType> autocast_dtype = std::nullopt;
  /// What autocast makes of the parameters within a window, and the number of
  /// micro-steps before that window; null if casts are not kept.
  std::unique_ptr<KeptCasts> kept_casts = nullptr;
  std::int64_t window_of_casts = 0;
  /// False inside accumulate() and no_sync() while a window is not at its end.
  bool sync_gradients = true;
  /// True if it was built without values and none have been loaded.
  bool awaits_values = false;
  /// The default of load_model(): only rank 0 reads the files.
  bool reads_on_rank_0 = false;
  /// Set if this is a stage of a pipelined model.
  std::shared_ptr<const StagedModel> stage = nullptr;
  /// See keep_freed_blocks(); null if nothing is kept for this model.
  std::shared_ptr<void> freed_blocks = nullptr;
  /// Unset after free_memory().
  std::optional<ModuleWatch> module_watch = std::nullopt;
  /// Null after free_memory().
  std::shared_ptr<PlainBackwards> plain_backwards = nullptr;
};

struct PreparedOptimizer {
  Session* session = nullptr;
  /// Null after free_memory(), and after the user's optimizer was destroyed.
  torch::optim::Optimizer* inner = nullptr;
  /// Steps `inner` instead of its own step(); null if there is none.
  FusedStep fused_step = nullptr;
  /// StepState::num_backwards when the gradients were last used or dropped.
  std::int64_t num_backwards_used = 0;
  /// See StepCounts.
  std::int64_t num_steps = 0;
  /// Keeps `inner` alive; null if it is borrowed.
  std::shared_ptr<void> owner = nullptr;
  bool was_destroyed = false;
  /// Keeps `inner` and `was_destroyed` up to date. Null for an owned optimizer
  /// that cannot be watched.
  std::shared_ptr<void> watch = nullptr;
  /// False until a step has looked for parameters that belong to no model.
  bool was_checked = false;
  /// See digest_of_parameters(), when strategies last saw the optimizer.
  std::size_t parameters = 0;
  /// True if the last step was skipped because of an infinite gradient; see
  /// settle_step().
  bool step_was_skipped = false;
  /// The last step, if the host does not know yet whether it was skipped.
  std::shared_ptr<DeferredStep> deferred = nullptr;
};

struct PreparedScheduler {
  Session* session = nullptr;
  /// Keeps the user's schedule alive; null if it is borrowed.
  std::shared_ptr<void> owner = nullptr;
  /// Null after free_memory().
  std::shared_ptr<ScheduleAdapter> schedule = nullptr;
  /// The optimizers whose skipped steps hold the schedule back.
  std::vector<const PreparedOptimizer*> optimizers;
  /// The steps taken inside join_uneven_inputs.
  std::vector<SchedulerStep> journal = {};
};

/// The casts that a forward may use, or else make and keep; null where it may
/// do neither.
KeptCasts* casts_to_keep(PreparedModel& model);
/// Frees the casts of all models.
void drop_kept_casts(Session& session);

/// A digest of the optimizer's groups and of which tensors they hold.
[[nodiscard]] std::size_t digest_of_parameters(
    const torch::optim::Optimizer& optimizer);
/// Whether a backward has left gradients that no step has used yet.
[[nodiscard]] bool is_accumulating(const PreparedOptimizer& optimizer);
/// Counts a backward that left gradients.
void count_backward(Session& session);
/// Does after the optimizer's step what is left to do on the host.
void finish_step(PreparedOptimizer& optimizer);
/// Finds out whether a deferred step was skipped, and finishes or undoes it.
void settle_step(PreparedOptimizer& optimizer);
/// The same for all optimizers.
void settle_steps(const Session& session);
/// Begins a micro-step on the host.
void begin_micro_step(
    Session& session,
    const std::vector<PreparedModel*>& models);
/// Marks its gradients as used or dropped; returns whether there were any.
bool use_gradients(PreparedOptimizer& optimizer);

/// Steps the user's optimizer itself, whether or not a step is due. `divisor`
/// is that of a FusedStep.
at::Tensor step_inner(
    const PreparedOptimizer& prepared,
    const LossClosure& closure,
    const at::Tensor& divisor = {});

/// Steps the schedule itself, whether or not a step is due.
void take_step(PreparedScheduler& prepared, const SchedulerStep& step);

/// Items (tokens, for example) over which a window's losses are means.
struct ItemCount {
  /// Sum of the counts given to backward() in this window.
  std::int64_t in_window = 0;
  /// Divisor of the weights of the window's losses, the same on all ranks;
  /// keeps gradients in range before the total is known.
  double unit = 1;
  std::int64_t in_micro_step = 0;
  /// The micro-step that was last counted; 0 if none.
  std::int64_t serial = 0;
};

/// State of backward() in a window, besides the clock.
struct WindowProgress {
  ItemCount items = {};
  /// The models of the current micro-step; empty for all.
  std::vector<PreparedModel*> models = {};
  /// The micro-step in which earlier gradients of a short window were scaled.
  std::int64_t aligned_serial = 0;
  /// Number of backward passes outside accumulate() since the last step.
  int num_loose_backwards = 0;
  /// The micro-step of the last backward; 0 outside accumulate().
  std::int64_t backward_serial = 0;
};

/// The state of join_uneven_inputs.
struct Join {
  /// True inside join_uneven_inputs, even on a single rank.
  bool is_open = false;
  /// A separate group over all ranks; created when first needed.
  std::optional<Group> group = std::nullopt;
  /// Null outside join_uneven_inputs and on a single rank.
  std::unique_ptr<JoinRound> round = nullptr;
  /// JoinOptions::even_batches, for passes over data that begin inside.
  std::optional<bool> even_batches = std::nullopt;
};

/// Position of a prepared loader in its pass.
struct LoaderProgress {
  /// Position in the order of preparation.
  std::int64_t index = 0;
  /// Number of batches handed out.
  std::int64_t num_batches = 0;
  /// Number of micro-steps begun in the current batch.
  int num_micro_steps = 0;
  bool is_last_batch = false;
  /// Number of real samples in the last global batch if it was padded,
  /// otherwise 0.
  std::int64_t remainder = 0;
};

/// State that all handles share. The order of members matters: they are
/// destroyed in reverse order, strategies before groups. The first members are
/// what each call in a step reads; they share a cache line, which LibTorch's
/// kernels evict between calls.
struct alignas(64) Session {
  StepState step = {};
  StepClock clock;
  /// Loaders being read, the innermost last.
  std::vector<LoaderProgress*> active_loaders = {};
  /// The settings in force, with their origins.
  Settings settings;
  SettingsReport report = {};
  World world;
  /// The plan for models without their own options.
  ParallelPlan plan;
  Mesh mesh;
  /// The request for which the plan was made, and its sources: the basis for
  /// plans of models with their own options.
  PlanRequest plan_request = {};
  RequestSources request_sources = {};
  /// Samples per rank and micro-step of each prepared loader; only with
  /// DeepSpeed, whose configuration names them.
  std::vector<std::int64_t> deepspeed_micro_batches = {};
  /// Meshes of models whose degrees differ from the session's.
  std::vector<Mesh> other_meshes = {};
  Precision precision = Precision::no;
  AutocastOptions autocast;
  GradientAccumulationOptions accumulation;
  SchedulerOptions scheduling;
  /// AcceleratorOptions::fused_linear.
  bool fused_linear = true;
  /// AcceleratorOptions::keep_casts.
  bool keep_casts = true;
  /// AcceleratorOptions::fused_optimizers.
  bool fused_optimizers = true;
  /// Defaults of loaders, as the program last set them.
  DataLoaderConfiguration dataloader_config = {};
  /// Generators that are synchronised at the start of a pass.
  std::vector<RNGType> rng_types = {};
  bool device_placement = true;
  /// The norm to which every step clips gradients, in addition to the program's
  /// own clipping.
  std::optional<double> max_gradient_norm = std::nullopt;
  /// Set only with fp16.
  std::optional<GradScaler> scaler;
  /// True if optimizers have stepped since the scale was last adjusted.
  bool scale_is_due = false;
  WindowProgress window = {};
  /// True inside Accelerator::backward() and a pipeline's step.
  bool is_in_backward = false;
  /// LibTorch's number of the last plain backward (PlainBackwards).
  int last_plain_backward = -1;
  /// True once the warning that a plain backward divides nothing was given.
  bool has_warned_of_plain_backward = false;
  /// True once the warning that no accumulate() is open was given.
  bool has_warned_of_window = false;
  bool trigger = false;
  /// Signals after which check_preemption() is true, and, since its first call,
  /// whether one has arrived.
  std::vector<int> preemption_signals = {};
  std::unique_ptr<SignalFlag> preemption = nullptr;
  /// True once the warning that maybe_context_parallel() splits nothing was
  /// given.
  bool has_warned_of_context = false;
  std::vector<std::unique_ptr<PreparedModel>> models;
  std::vector<std::unique_ptr<PreparedOptimizer>> optimizers;
  std::vector<std::unique_ptr<PreparedScheduler>> schedulers;
  std::unique_ptr<StepWatch> step_watch = std::make_unique<StepWatch>();
  /// True once the warning that no handle steps was given.
  bool has_warned_of_steps = false;
  std::int64_t num_loaders = 0;
  /// How often free_memory() was called; loaders prepared earlier are released.
  std::int64_t num_releases = 0;
  Join join = {};
  /// Number of steps the optimizers have made; read by another thread.
  std::shared_ptr<StepCounts> step_counts = std::make_shared<StepCounts>();
  /// Backward passes that average gradients over ranks; read by another thread.
  std::shared_ptr<std::atomic<std::int64_t>> num_averaging_passes =
      std::make_shared<std::atomic<std::int64_t>>(0);
  std::unique_ptr<RankAgreement> agreement;
  /// The world's slot on which a profile listens.
  std::shared_ptr<StepSlot> steps = nullptr;
  /// What profile() records by default.
  ProfileOptions profile_options = {};
  /// Trackers and the run's journal.
  std::unique_ptr<RunTracking> tracking;
  /// The run of a captured step's function that is in progress; null otherwise.
  CapturedRun* captured_run = nullptr;
  /// Makes graphs of the device; unset: as graphs_of() says.
  MakeGraph make_graph = nullptr;
  /// The captured steps, whose graphs free_memory() frees.
  std::vector<std::weak_ptr<StepGraphs>> captured_steps = {};
  /// Last, so that a save in progress ends before anything it uses is
  /// destroyed.
  std::unique_ptr<Checkpoints> checkpoints;

  /// The model's tensor for a tensor that an optimizer steps on; null if no
  /// prepared model has it.
  [[nodiscard]] const at::Tensor* tensor_of(const at::Tensor& local) const {
    for (const auto& model : models) {
      const Parameter* row = model->table.find_local(local);
      if (row != nullptr) return &row->tensor;
    }
    return nullptr;
  }
  [[nodiscard]] LoaderProgress* active_loader() const {
    return active_loaders.empty() ? nullptr : active_loaders.back();
  }
};

inline bool is_accumulating(const PreparedOptimizer& optimizer) {
  return optimizer.num_backwards_used != optimizer.session->step.num_backwards;
}

inline void count_backward(Session& session) {
  ++session.step.num_backwards;
  session.window.backward_serial = session.clock.serial();
}

inline bool use_gradients(PreparedOptimizer& optimizer) {
  const std::int64_t now = optimizer.session->step.num_backwards;
  return std::exchange(optimizer.num_backwards_used, now) != now;
}

/// Implements Accelerator::clip_grad_norm_. `parameters` are tensors of models
/// or those that optimizers step on.
at::Tensor clip_gradients(
    Session& session,
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    const ClipNormOptions& options);

/// The tensors of all its groups.
[[nodiscard]] std::vector<at::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer);

/// The norm of an optimizer's gradients, and what its fused step is to divide
/// them by so that it becomes at most `max_norm`; undefined if they have been
/// clipped here.
struct StepClipping {
  at::Tensor norm;
  at::Tensor divisor;
};
StepClipping clip_for_step(
    const PreparedOptimizer& optimizer,
    const ClippedStepOptions& options);

/// Notices what the program has changed since prepare(). Strategies bind
/// parameters that optimizers have got, and the tables of models that need no
/// strategy follow the modules. Throws ConfigError that names what cannot be
/// adapted to.
void notice_changes(Session& session);
/// The part of it that is about modules.
void follow_modules(Session& session);
/// Lets the session's watch see the optimizer's tensors whose steps only the
/// handle can take.
void watch_steps(Session& session, const torch::optim::Optimizer& optimizer);

/// Throws ConfigError for a handle that free_memory() released. `what` has to
/// be prepared: "the model again".
[[noreturn]] void throw_released(std::string_view what);

/// Warns once, at the optimizer's first step, about parameters that belong to
/// no prepared model, whose gradients no strategy averages.
void warn_untracked_parameters(Session& session, PreparedOptimizer& optimizer);

/// Throws ConfigError inside join_uneven_inputs. `what` names the operation that
/// needs all ranks.
void require_no_join(const Session& session, std::string_view what);

}  // namespace accelerate::detail
