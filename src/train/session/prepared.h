#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <accelerate/parallel.h>

#include "checkpoint/components/models.h"
#include "gate/kept_casts.h"
#include "gate/layer_products.h"
#include "optim/optimizers/fused.h"
#include "parallel/strategy_list.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

struct Session;
class DeferredStep;
class ModuleWatch;
class PlainBackwards;
class ScheduleAdapter;
class StepCounts;
class StepWatch;

/// What is known about the full model of which this rank has a stage.
struct StagedModel {
  OtherStages others;
  /// All layers under their names. Tensors of other stages are on the meta
  /// device.
  std::shared_ptr<torch::nn::Module> module;
};

/// The state that a model's forwards use.
struct ModelForward {
  /// The layers whose products include their bias; null if none do.
  std::unique_ptr<LayerProducts> layer_products = nullptr;
  /// Set if forwards run under autocast.
  std::optional<c10::ScalarType> autocast_dtype = std::nullopt;
  /// Autocast's casts of the parameters within a window, and the number of
  /// micro-steps before that window; null if casts are not kept.
  std::unique_ptr<KeptCasts> kept_casts = nullptr;
  std::int64_t window_of_casts = 0;
};

/// Where a model's tensors are, and where their values come from.
struct ModelPlacement {
  at::Device device = at::kCPU;
  /// True if it was built without values and none have been loaded.
  bool awaits_values = false;
  /// The default of load_model(): only rank 0 reads the files.
  bool reads_on_rank_0 = false;
  /// See keep_freed_blocks(); null if nothing is kept for this model.
  std::shared_ptr<void> freed_blocks = nullptr;
};

/// Watches that notice if a program changes a model, or runs its backwards
/// itself. Null after free_memory().
struct ModelWatches {
  std::shared_ptr<ModuleWatch> module = nullptr;
  std::shared_ptr<PlainBackwards> plain_backwards = nullptr;
};

struct PreparedModel {
  /// See the function of this name. A model gets no strategy, dtype or missing
  /// value after it was prepared; a profile turns this off.
  bool runs_directly = false;
  Session* session = nullptr;  // its owner
  /// Null after free_memory().
  std::shared_ptr<torch::nn::Module> module;
  /// True if it was prepared without gradient averaging.
  bool evaluation_mode = false;
  /// The session's mesh, or the model's own.
  Mesh mesh;
  ParameterTable table = {};
  StrategyList strategies = {};
  ModelForward forward = {};
  /// False inside accumulate() and no_sync() while a window is not at its end.
  bool sync_gradients = true;
  ModelPlacement placement = {};
  /// Set if this is a stage of a pipelined model.
  std::shared_ptr<const StagedModel> stage = nullptr;
  ModelWatches watches = {};
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

/// One step of a schedule.
struct SchedulerStep {
  bool has_metric = false;
  double metric = 0;
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

/// The arguments of prepare(), in the order of preparation.
struct PreparedItems {
  std::vector<std::unique_ptr<PreparedModel>> models;
  std::vector<std::unique_ptr<PreparedOptimizer>> optimizers;
  std::vector<std::unique_ptr<PreparedScheduler>> schedulers;
  std::shared_ptr<StepWatch> step_watch;
  /// Number of steps the optimizers have made; read by another thread.
  std::shared_ptr<StepCounts> step_counts;

  /// The model's tensor for a tensor that an optimizer steps on; null if no
  /// prepared model has it.
  [[nodiscard]] const at::Tensor* tensor_of(const at::Tensor& local) const {
    for (const auto& model : models) {
      const Parameter* row = model->table.find_local(local);
      if (row != nullptr) return &row->tensor;
    }
    return nullptr;
  }
};

/// The part of notice_changes() that concerns modules.
void follow_modules(PreparedItems& prepared);

/// Throws ConfigError for a handle that free_memory() released. `what` has to
/// be prepared: "the model again".
[[noreturn]] void throw_released(std::string_view what);

}  // namespace accelerate::detail
