#include <accelerate/accelerator.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/optimizers.h>

#include "base/require.h"
#include "base/text/text.h"
#include "train/capture/captured_run.h"
#include "train/session/session.h"
#include "train/step/gradients.h"
#include "train/step/plain_backwards.h"
#include "train/step/scaling.h"
#include "train/step/step_counts.h"
#include "train/step/step_watch.h"

namespace accelerate {

namespace {

using detail::format;
using detail::Session;

// Scales the gradients of the window's earlier micro-steps, which the ranks
// have not averaged yet.
void multiply_pending_gradients(Session& session, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  const auto multiply = [&](const at::Tensor& gradient) {
    if (gradient.defined()) gradient.mul_(factor);
  };
  for (const auto& model : session.prepared.models) {
    const auto& named = session.window.progress.models;
    if (!named.empty() &&
        std::ranges::find(named, model.get()) == named.end()) {
      continue;
    }
    for (const detail::Parameter& row : model->table.rows()) {
      multiply(row.tensor.grad());
      if (!row.local.is_same(row.tensor)) multiply(row.local.grad());
    }
  }
}

// Sums over the ranks whose gradients are averaged, so that items of a batch
// shared by several ranks count once.
double sum_over_ranks(const Session& session, std::int64_t count) {
  const at::Tensor sum = at::full({}, count, at::kLong);
  session.layout.mesh.gradient_group().all_reduce(sum, ReduceOp::sum);
  return static_cast<double>(sum.item<std::int64_t>());
}

// The gradients of a window add up to the mean over all items of all ranks, and
// the ranks are averaged, so the weight of a mean over n items is n x ranks /
// all items. That total is known in the window's last micro-step; until then,
// the count of the first one stands in for it.
double weight_of_items(Session& session, std::int64_t num_items) {
  const double ranks = session.layout.mesh.gradient_group().size();
  detail::ItemCount& items = session.window.progress.items;
  const detail::StepClock& clock = session.clock;
  const bool is_in_window = clock.window() > 1 && clock.serial() > 0;
  if (!is_in_window) {
    const double total = sum_over_ranks(session, num_items);
    return total == 0 ? 0 : static_cast<double>(num_items) * ranks / total;
  }
  if (items.serial == clock.serial()) {
    // Another loss of the same micro-step.
    if (num_items != items.in_micro_step) {
      throw ConfigError(format(
          "[train] num_items must be the same for all losses of a micro-step, "
          "but is {} after {}",
          num_items,
          items.in_micro_step));
    }
    return static_cast<double>(num_items) / items.unit;
  }
  if (clock.length() == 1) {
    items.in_window = 0;
    const double first = sum_over_ranks(session, num_items);
    items.unit = first == 0 ? 1 : first / ranks;
  }
  items.in_window += num_items;
  items.in_micro_step = num_items;
  items.serial = clock.serial();
  if (clock.sync_gradients()) {
    const double total = sum_over_ranks(session, items.in_window);
    double unit = total == 0 ? items.unit : total / ranks;
    if (clock.is_short())
      unit *= static_cast<double>(clock.divisor()) / clock.length();
    multiply_pending_gradients(session, items.unit / unit);
    items.unit = unit;
  }
  return static_cast<double>(num_items) / items.unit;
}

void require_loss(const at::Tensor& loss, const BackwardOptions& options) {
  if (!loss.defined()) {
    throw ConfigError(
        "[train] the loss of backward() must be defined, but is not; pass the "
        "model's loss");
  }
  if (!options.gradient.defined() && loss.numel() != 1) {
    throw ConfigError(format(
        "[train] the loss of backward() must be one number, but has {}; reduce "
        "it (mean, sum), or set the option `gradient`",
        loss.numel()));
  }
  if (options.gradient.defined() && options.gradient.sizes() != loss.sizes()) {
    throw ConfigError(format(
        "[train] the loss and the gradient of backward() must have the same "
        "shape, but have {} and {}",
        loss.sizes(),
        options.gradient.sizes()));
  }
}

void require_same_weighting(
    const Session& session,
    const BackwardOptions& options) {
  const detail::StepClock& clock = session.clock;
  const bool weighs_by_items =
      session.layout.plan_request.training.step.weighs_by_items;
  if (options.num_items && weighs_by_items)
    detail::require_no_join(session, "backward() with num_items counts");
  detail::require_at_least(
      "train", "num_items of backward()", options.num_items.value_or(0), 0);
  if (clock.window() == 1 || clock.serial() == 0 || clock.length() == 1) return;
  if (!weighs_by_items) return;
  const bool had_items =
      session.window.progress.items.serial == clock.serial() ||
      session.window.progress.items.serial == clock.serial() - 1;
  if (had_items != options.num_items.has_value()) {
    throw ConfigError(
        "[train] num_items must be passed to backward() in all micro-steps of "
        "a window or in none, but was passed in some");
  }
}

// Notifies all strategies, then throws the first strategy's explanation, or
// otherwise the original exception.
[[noreturn]] void fail_backward(
    const Session& session,
    const std::exception& error) {
  std::exception_ptr explanation;
  for (const auto& model : session.prepared.models) {
    const std::exception_ptr own = model->strategies.on_failure(error);
    if (!explanation) explanation = own;
  }
  if (explanation) std::rethrow_exception(explanation);
  throw;
}

// Runs `body`, a backward from `loss`, and notifies all models' strategies when
// it begins, ends or fails. `syncs` returns whether it ends a model's step.
template <class Syncs, class Body>
void run_backward(
    Session& session,
    const at::Tensor& loss,
    Syncs&& syncs,
    Body&& body) {
  const detail::StepPartScope part(
      session.services.steps.get(), detail::StepPart::backward);
  if (session.clock.sync_gradients()) detail::notice_changes(session);
  try {
    if (!loss.requires_grad()) {
      throw ConfigError(
          "[train] the loss of backward() must have a graph, but has none; "
          "compute it from the model's outputs, outside NoGradGuard and "
          "detach(), and leave some parameter trainable");
    }
    for (const auto& model : session.prepared.models) {
      if (model->watches.plain_backwards)
        model->watches.plain_backwards->watch();
      model->strategies.before_backward(syncs(model), loss);
    }
    const detail::OwnBackward own(session.window);
    std::forward<Body>(body)();
    for (const auto& model : session.prepared.models)
      model->strategies.after_backward(syncs(model));
  } catch (const std::exception& error) {
    fail_backward(session, error);
  }
}

// What only the handle's step does, for messages; empty if it does the same as
// the optimizer's.
std::string extras_of_steps(const Session& session) {
  std::vector<std::string> extras;
  if (session.scaling.scaler && session.scaling.scaler->is_enabled())
    extras.emplace_back("removes fp16's scale from gradients");
  if (session.scaling.max_gradient_norm) extras.emplace_back("clips gradients");
  if (session.options.precision == Precision::fp8)
    extras.emplace_back("updates the scales of float8");
  return detail::join(extras, ", ");
}

// A program may add up gradients of many backwards without saying so, but more
// likely it steps the optimizer itself.
void warn_without_steps(Session& session) {
  constexpr std::int64_t kManyBackwards = 16;
  if (session.window.has_warned_of_steps || session.clock.window() > 1) return;
  const auto is_waiting_long = [&](const auto& optimizer) {
    return optimizer->inner != nullptr &&
        session.step.num_backwards - optimizer->num_backwards_used >=
        kManyBackwards;
  };
  if (session.prepared.optimizers.empty() ||
      !std::ranges::all_of(session.prepared.optimizers, is_waiting_long))
    return;
  session.window.has_warned_of_steps = true;
  const std::string extras = extras_of_steps(session);
  if (extras.empty()) return;
  session.world.logger().log_once_per_world(
      LogLevel::warning,
      "train",
      format(
          "{} backwards have ended without a step() or zero_grad() of the "
          "optimizer's handle; if the program steps the optimizer itself, it "
          "leaves out what the handle does: it {}",
          kManyBackwards,
          extras));
}

// Counts a backward() that has ended.
void note_backward(Session& session) {
  if (session.clock.window() > 1 && session.clock.serial() == 0)
    ++session.window.progress.num_loose_backwards;
  detail::count_backward(session);
}

// While a step is recorded: lets each replay count the backward.
void repeat_backward(Session& session, detail::CapturedRun& run) {
  const bool is_aligned =
      session.window.progress.aligned_serial == session.clock.serial();
  run.repeat([&session, is_aligned] {
    if (is_aligned)
      session.window.progress.aligned_serial = session.clock.serial();
    note_backward(session);
  });
}

// The weights of a replay are those that were recorded.
void require_recordable(
    const Session& session,
    const BackwardOptions& options) {
  if (detail::recorded_run(session) == nullptr) return;
  if (options.num_items.value_or(1) == 0 ||
      (options.num_items && session.clock.window() > 1)) {
    throw ConfigError(
        "[train] backward() with num_items cannot be captured in a window of "
        "several micro-steps, nor with 0 items, since the weight of the loss "
        "depends on it");
  }
}

// Begins a micro-step on the host.
void begin_on_host(
    Session& session,
    const std::vector<detail::PreparedModel*>& models) {
  detail::LoaderProgress* const loader = session.active_loader();
  // The first micro-step of a batch does not tell whether there will be more.
  if (loader != nullptr && ++loader->num_micro_steps > 1)
    session.clock.note_batch(loader->num_micro_steps);
  session.clock.begin_micro_step(
      loader != nullptr && loader->is_last_batch &&
      session.options.accumulation.sync_with_dataloader);
  if (!session.step.is_direct) session.window.progress.models = models;
}

// The prepared model whose parameters `optimizer` updates; null if none.
detail::PreparedModel* model_of(
    const Session& session,
    const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      for (const auto& model : session.prepared.models) {
        if (model->table.find(parameter) != nullptr ||
            model->table.find_local(parameter) != nullptr) {
          return model.get();
        }
      }
    }
  }
  return nullptr;
}

}  // namespace

// The gradients of a window add up to the mean over its micro-steps. Only its
// last micro-step reveals that a loader's end cuts it short; the earlier
// gradients are scaled then.
double detail::weight_of_micro_step(Session& session) {
  const StepClock& clock = session.clock;
  const int window = clock.window();
  const int divisor = session.options.accumulation.divide_by_full_window
      ? window
      : clock.divisor();
  if (divisor != window &&
      std::exchange(session.window.progress.aligned_serial, clock.serial()) !=
          clock.serial()) {
    multiply_pending_gradients(session, static_cast<double>(window) / divisor);
  }
  return 1.0 / divisor;
}

void Accelerator::backward(
    const at::Tensor& loss,
    const BackwardOptions& options) const {
  Session& session = *session_;
  const detail::LibraryCall call;
  require_loss(loss, options);
  require_same_weighting(session, options);
  require_recordable(session, options);
  if (session.capture.run != nullptr)
    session.capture.run->note_backward(session);
  detail::settle_scale(session);
  const bool weighs_by_items = options.num_items &&
      session.layout.plan_request.training.step.weighs_by_items;
  const double weight = weighs_by_items
      ? weight_of_items(session, *options.num_items)
      : detail::weight_of_micro_step(session);
  at::Tensor weighted = weight == 1 ? loss : loss * weight;
  if (session.scaling.scaler)
    weighted = session.scaling.scaler->scale(weighted);
  const auto syncs = [](const auto& model) { return model->sync_gradients; };
  run_backward(session, weighted, syncs, [&] {
    const auto averages = [&](const auto& model) {
      return syncs(model) && !model->evaluation_mode;
    };
    if (session.world.size() > 1 &&
        std::ranges::any_of(session.prepared.models, averages)) {
      ++*session.window.num_averaging_passes;
    }
    const std::optional<bool> retain_graph =
        options.retain_graph ? std::optional<bool>(true) : std::nullopt;
    const std::optional<at::TensorList> inputs = options.inputs.empty()
        ? std::nullopt
        : std::optional<at::TensorList>(options.inputs);
    weighted.backward(
        options.gradient, retain_graph, options.create_graph, inputs);
  });
  if (auto* const run = detail::recorded_run(session))
    repeat_backward(session, *run);
  note_backward(session);
  warn_without_steps(session);
}

void Accelerator::lomo_backward(const at::Tensor& loss, double learning_rate)
    const {
  std::vector<std::shared_ptr<detail::PreparedOptimizer>> found;
  for (const auto& optimizer : session_->prepared.optimizers) {
    if (dynamic_cast<optim::FusedBackwardOptimizer*>(optimizer->inner) !=
        nullptr) {
      found.emplace_back(session_, optimizer.get());
    }
  }
  if (found.size() != 1) {
    throw ConfigError(format(
        "[train] lomo_backward() needs one prepared optimizer that updates "
        "inside the backward, but there are {}; prepare an optim::Lomo or "
        "optim::AdaLomo, and pass it if there are several",
        found.size()));
  }
  lomo_backward(loss, learning_rate, Optimizer(found[0]));
}

void Accelerator::lomo_backward(
    const at::Tensor& loss,
    double learning_rate,
    const Optimizer& optimizer) const {
  Session& session = *session_;
  detail::require_no_join(session, "lomo_backward() averages");
  auto* lomo = dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer.inner());
  std::vector<std::string> complaints;
  if (detail::recorded_run(session) != nullptr) {
    complaints.emplace_back(
        "[train] lomo_backward() cannot be captured, since its learning rate "
        "is a number on the host");
  }
  if (lomo == nullptr) {
    complaints.emplace_back(
        "[train] the optimizer of lomo_backward() must update inside the "
        "backward, but does not; use backward() and step()");
  }
  if (!loss.defined())
    complaints.emplace_back(
        "[train] the loss of lomo_backward() must be defined, but is not");
  if (session.clock.window() > 1) {
    complaints.push_back(format(
        "[train] lomo_backward() keeps no gradients to add to, but "
        "gradient_accumulation_steps is {}; set it to 1",
        session.clock.window()));
  }
  if (session.scaling.scaler) {
    complaints.emplace_back(
        "[train] lomo_backward() cannot scale losses for fp16; use bf16 or no");
  }
  for (const auto& model : session.prepared.models) {
    const auto& traits = model->strategies.traits();
    if (traits.lomo_complaint) complaints.push_back(*traits.lomo_complaint);
    const bool needs_more = lomo != nullptr && !lomo->updates_elements_alone();
    if (needs_more && traits.sliced_lomo_complaint)
      complaints.push_back(*traits.sliced_lomo_complaint);
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
  detail::report_settings_without_effect(session);
  detail::PreparedModel* const model = model_of(session, *lomo);
  const auto syncs = [](const auto&) { return false; };
  run_backward(session, loss, syncs, [&] {
    lomo->fused_backward(loss, learning_rate, [&](const at::Tensor& gradient) {
      if (model != nullptr) model->strategies.average_gradient(gradient);
    });
  });
  detail::StepCounts::advance(optimizer.prepared()->num_steps);
  detail::end_step(session.prepared, *session.services.tracking, *lomo);
}

MicroStep::MicroStep(
    std::shared_ptr<detail::Session> session,
    std::initializer_list<detail::PreparedModel*> models,
    bool sync_gradients)
    : session_(std::move(session)), models_(models) {
  for (const detail::PreparedModel* model : models_) {
    if (!model->module) detail::throw_released("the model again");
  }
  for (detail::PreparedModel* model : models_) {
    before_.push_back(model->sync_gradients);
    // An enclosing scope, such as LocalSGD's, may have switched it off.
    model->sync_gradients = model->sync_gradients && sync_gradients;
  }
}

void MicroStep::restore() {
  for (std::size_t i = 0; i < models_.size(); ++i)
    models_[i]->sync_gradients = before_[i];
}

MicroStep Accelerator::begin_micro_step(
    std::initializer_list<detail::PreparedModel*> models) const {
  Session& session = *session_;
  if (session.capture.run != nullptr) ++session.capture.run->num_micro_steps;
  if (auto* const run = detail::recorded_run(session)) {
    run->repeat([&session, models = std::vector(models)] {
      begin_on_host(session, models);
    });
  }
  // Avoids making a vector where none is needed.
  if (session.step.is_direct) {
    begin_on_host(session, {});
    return {};
  }
  begin_on_host(session, models);
  const bool sync_gradients = session.clock.sync_gradients() ||
      session.options.accumulation.sync_each_batch;
  return MicroStep(session_, models, sync_gradients);
}

bool Accelerator::sync_gradients() const {
  return session_->clock.sync_gradients();
}

int Accelerator::gradient_accumulation_steps() const {
  return session_->clock.window();
}

}  // namespace accelerate
