#include <accelerate/optimizer.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/hash.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/watched_tensor.h"
#include "train/capture/captured_run.h"
#include "train/optimizers/optimizer_fit.h"
#include "train/optimizers/step_parts.h"
#include "train/session/session.h"
#include "train/step/gradients.h"
#include "train/step/scaling.h"
#include "train/step/step_counts.h"
#include "train/step/step_watch.h"

namespace accelerate {

namespace {

void require_prepared(const detail::PreparedOptimizer& prepared) {
  if (prepared.inner != nullptr) return;
  if (prepared.was_destroyed) {
    throw ConfigError(
        "[train] the optimizer of this handle was destroyed; keep it as long "
        "as the handle is used, for instance in the same scope");
  }
  detail::throw_released("the optimizer again");
}

// A manual window (no_sync, then one backward outside) must have as many
// backward passes as the divisor of losses.
void warn_without_windows(detail::Session& session) {
  const int window = session.clock.window();
  const int num_backwards =
      std::exchange(session.window.progress.num_loose_backwards, 0);
  if (num_backwards == 0 || num_backwards == window) return;
  if (std::exchange(session.window.has_warned_of_window, true)) return;
  session.world.logger().log_once_per_world(
      LogLevel::warning,
      "train",
      detail::format(
          "gradient_accumulation_steps is {}, so backward() divides each loss "
          "by {}, but an optimizer steps after {} of them: no accumulate() is "
          "open; begin each micro-step with it, or set "
          "gradient_accumulation_steps to 1",
          window,
          window,
          num_backwards));
}

// See StepState.
bool can_step_directly(const detail::Session& session) {
  return session.capture.run == nullptr && session.world.size() == 1 &&
      session.clock.window() == 1 && !session.scaling.scaler &&
      !session.scaling.max_gradient_norm && session.layout.report.is_made &&
      session.layout.report.num_reported ==
      session.layout.report.ignored.size() &&
      !session.services.steps->is_heard() &&
      std::ranges::all_of(session.prepared.models, [](const auto& model) {
           return model->strategies.is_idle();
         });
}

// Rejects parameters whose shard or master weight the optimizer also has. Tied
// weights may occur once per name.
void require_added_once(
    const torch::optim::Optimizer& optimizer,
    const detail::ParameterTable& table) {
  std::unordered_set<const void*> held;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params())
      held.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const detail::Parameter* const row = table.find(parameter);
      if (row == nullptr || row->local.is_same(parameter) ||
          !held.contains(row->local.unsafeGetTensorImpl())) {
        continue;
      }
      throw ConfigError(detail::format(
          "[train] an optimizer got the parameter \"{}\" after prepare(), but "
          "already steps on it as a shard or master "
          "weight; leave one of them out",
          row->name));
    }
  }
}

// Lets strategies bind parameters that the program has added since.
void bind_added_parameters(
    detail::Session& session,
    detail::PreparedOptimizer& prepared) {
  torch::optim::Optimizer& inner = *prepared.inner;
  if (detail::digest_of_parameters(inner) == prepared.parameters) return;
  for (const auto& model : session.prepared.models)
    detail::require_fitting_optimizer(inner, *model);
  for (const auto& model : session.prepared.models)
    require_added_once(inner, model->table);
  for (const auto& model : session.prepared.models)
    model->strategies.bind(inner, model->table);
  detail::watch_steps(session, inner);
  prepared.parameters = detail::digest_of_parameters(inner);
  prepared.was_checked = false;
}

// Clips to the session's norm in a pass of its own.
void clip_at_once(
    detail::Session& session,
    const torch::optim::Optimizer& optimizer) {
  detail::clip_gradients(
      session,
      detail::parameters_of(optimizer),
      *session.scaling.max_gradient_norm,
      {});
}

// Clips as the session says, then as the step does.
detail::StepClipping clip_for_step(
    const detail::PreparedOptimizer& prepared,
    const ClippedStepOptions* clipped) {
  detail::Session& session = *prepared.session;
  if (clipped != nullptr) {
    if (session.scaling.max_gradient_norm)
      clip_at_once(session, *prepared.inner);
    return detail::clip_for_step(prepared, *clipped);
  }
  if (!session.scaling.max_gradient_norm) return {};
  return detail::clip_for_step(
      prepared, {.max_norm = *session.scaling.max_gradient_norm});
}

// Steps while the optimizer has its whole state. Gradients computed by the
// closure are completed like those before it.
at::Tensor step_on_whole_state(
    detail::PreparedOptimizer& prepared,
    const std::function<at::Tensor()>& closure,
    const at::Tensor& divisor) {
  detail::Session& session = *prepared.session;
  torch::optim::Optimizer& inner = *prepared.inner;
  for (const auto& model : session.prepared.models)
    model->strategies.unpack_optimizer_state(inner);
  at::Tensor loss;
  if (session.scaling.scaler) {
    loss = detail::scaled_step(session, prepared, closure, divisor);
  } else {
    const detail::LossClosure completed = [&] {
      at::Tensor computed = closure();
      detail::complete_gradients(session);
      if (session.scaling.max_gradient_norm) clip_at_once(session, inner);
      return computed;
    };
    loss = detail::step_inner(prepared, closure ? completed : nullptr, divisor);
    detail::use_gradients(prepared);
  }
  for (const auto& model : session.prepared.models)
    model->strategies.pack_optimizer_state(inner);
  return loss;
}

// Warns once, at the optimizer's first step, about parameters that belong to no
// prepared model, whose gradients no strategy averages.
void warn_untracked_parameters(
    detail::Session& session,
    detail::PreparedOptimizer& optimizer) {
  constexpr std::size_t kNamedShapes = 4;
  if (std::exchange(optimizer.was_checked, true) || session.world.size() == 1)
    return;
  std::size_t num_untracked = 0;
  std::vector<std::string> shapes;
  for (const auto& group : optimizer.inner->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const bool is_untracked =
          std::ranges::none_of(session.prepared.models, [&](const auto& model) {
            return !model->evaluation_mode &&
                (model->table.find(parameter) != nullptr ||
                 model->table.find_local(parameter) != nullptr);
          });
      if (!is_untracked) continue;
      ++num_untracked;
      if (shapes.size() < kNamedShapes)
        shapes.push_back(detail::format("{}", parameter.sizes()));
    }
  }
  if (num_untracked == 0) return;
  session.world.logger().log_once_per_world(
      LogLevel::warning,
      "train",
      detail::format(
          "an optimizer steps on {} tensors of no prepared model (shapes "
          "{}{}); their gradients are not averaged over the ranks; prepare "
          "their model, or average them with reduce()",
          num_untracked,
          detail::join(shapes, ", "),
          num_untracked > shapes.size() ? ", ..." : ""));
}

// Not inlined, so that step() spans only a few cache lines when it does not
// need this.
[[gnu::noinline]] at::Tensor take_step(
    detail::PreparedOptimizer& prepared,
    const std::function<at::Tensor()>& closure,
    const ClippedStepOptions* clipped) {
  detail::Session& session = *prepared.session;
  const detail::StepPartScope part(
      session.services.steps.get(), detail::StepPart::optimizer);
  const detail::LibraryCall call;
  detail::settle_step(prepared);
  warn_without_windows(session);
  detail::report_settings_without_effect(session);
  detail::notice_changes(session);
  warn_untracked_parameters(session, prepared);
  detail::complete_gradients(session);
  detail::drop_kept_casts(session);
  // Gradients of a closure are clipped once they exist.
  const detail::StepClipping clipping =
      closure ? detail::StepClipping() : clip_for_step(prepared, clipped);
  if (detail::recorded_run(session) != nullptr) {
    detail::record_step(prepared, closure, clipping.divisor);
    return clipped != nullptr ? clipping.norm : at::Tensor();
  }
  at::Tensor result = step_on_whole_state(prepared, closure, clipping.divisor);
  if (clipped != nullptr) result = clipping.norm;
  if (session.capture.run != nullptr) ++session.capture.run->num_steps;
  if (prepared.step_was_skipped || prepared.deferred) return result;
  detail::finish_step(prepared);
  session.step.is_direct = can_step_directly(session);
  return result;
}

// Whether gradients are those of a window that is over: no handle has used
// them, but the program may have stepped the optimizer itself, or skips the
// step.
bool has_window_ended(const detail::Session& session) {
  const detail::StepClock& clock = session.clock;
  if (clock.serial() == 0) return false;
  return session.window.progress.backward_serial == clock.serial()
      ? clock.sync_gradients()
      : clock.length() == 1;
}

// Drops strategies' gradients of a tensor on which an optimizer steps.
void drop_kept_gradient(
    const detail::Session& session,
    const at::Tensor& parameter) {
  const at::Tensor* const in_model = session.prepared.tensor_of(parameter);
  for (const auto& model : session.prepared.models)
    model->strategies.drop_gradient(in_model ? *in_model : parameter);
}

}  // namespace

void detail::finish_step(PreparedOptimizer& optimizer) {
  const Session& session = *optimizer.session;
  StepCounts::advance(optimizer.num_steps);
  if (session.services.steps->monitor)
    session.services.steps->monitor->stepped(
        session.prepared.step_counts->most());
  end_step(session.prepared, *session.services.tracking, *optimizer.inner);
  session.prepared.step_watch->forget();
}

at::Tensor detail::step_inner(
    const PreparedOptimizer& prepared,
    const LossClosure& closure,
    const at::Tensor& divisor) {
  const PreparedItems& items = prepared.session->prepared;
  const bool has_parts = std::ranges::any_of(items.models, [](const auto& m) {
    return m->strategies.traits().steps_in_parts;
  });
  if (!has_parts) return step_at_once(prepared, closure, divisor);
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  step_in_parts(items, *prepared.inner, [&] {
    step_at_once(prepared, nullptr, divisor);
  });
  return loss;
}

std::size_t detail::digest_of_parameters(
    const torch::optim::Optimizer& optimizer) {
  std::size_t digest = 0;
  for (const auto& group : optimizer.param_groups()) {
    digest = c10::hash_combine(digest, group.params().size());
    for (const at::Tensor& parameter : group.params()) {
      digest = c10::hash_combine(
          digest,
          reinterpret_cast<std::size_t>(parameter.unsafeGetTensorImpl()));
    }
  }
  return digest;
}

void detail::notice_changes(Session& session) {
  for (const auto& optimizer : session.prepared.optimizers) {
    if (optimizer->inner != nullptr) bind_added_parameters(session, *optimizer);
  }
  follow_modules(session.prepared);
}

void detail::watch_steps(
    Session& session,
    const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      for (const auto& model : session.prepared.models) {
        const Parameter* const row = model->table.find_local(parameter);
        if (row == nullptr || row->local.is_same(row->tensor)) continue;
        // A keeper reads the values of such a tensor anew in each pass.
        const bool follows_local = keeper_of(row->tensor) != nullptr;
        if (follows_local && !session.scaling.max_gradient_norm &&
            !session.scaling.scaler)
          continue;
        session.prepared.step_watch->watch(row->name, row->tensor, row->local);
      }
    }
  }
}

at::Tensor Optimizer::step(const std::function<at::Tensor()>& closure) const {
  require_prepared(*prepared_);
  const detail::Session& session = *prepared_->session;
  if (!session.clock.sync_gradients()) return {};
  if (!session.step.is_direct) return take_step(*prepared_, closure, nullptr);
  at::Tensor loss = detail::step_inner(*prepared_, closure);
  detail::use_gradients(*prepared_);
  detail::StepCounts::advance(prepared_->num_steps);
  return loss;
}

at::Tensor Optimizer::step(const ClippedStepOptions& options) const {
  require_prepared(*prepared_);
  if (!(options.max_norm > 0)) {
    throw ConfigError(detail::format(
        "[train] max_norm must be above 0, but is {}", options.max_norm));
  }
  if (!prepared_->session->clock.sync_gradients()) return {};
  return take_step(*prepared_, nullptr, &options);
}

void Optimizer::zero_grad(bool set_to_none) const {
  require_prepared(*prepared_);
  const detail::Session& session = *prepared_->session;
  if (session.clock.window() > 1 && detail::is_accumulating(*prepared_) &&
      !has_window_ended(session)) {
    return;
  }
  const bool was_waiting = detail::use_gradients(*prepared_);
  if (auto* const run = detail::recorded_run(session)) {
    run->repeat([&prepared = *prepared_] { detail::use_gradients(prepared); });
  }
  const detail::LibraryCall call;
  const detail::StepPartScope part(
      session.step.is_direct ? nullptr : session.services.steps.get(),
      detail::StepPart::optimizer);
  // LibTorch's zero_grad() detaches in place, which fails for gradients that
  // are views of communication buckets.
  const at::NoGradGuard no_grad;
  for (auto& group : prepared_->inner->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      detail::drop_gradient(parameter, set_to_none);
      if (session.step.is_direct) continue;
      drop_kept_gradient(session, parameter);
      // The model's own tensor may hold a gradient that its local one has not
      // received yet.
      if (const at::Tensor* tensor = session.prepared.tensor_of(parameter)) {
        detail::drop_gradient(*tensor, set_to_none);
      }
    }
  }
  if (session.step.is_direct) return;
  // Gradients may have been unscaled for a step that was never taken.
  const auto& scaler = session.scaling.scaler;
  if (was_waiting && scaler) scaler->undo_unscale_(*prepared_->inner);
}

bool Optimizer::step_was_skipped() const {
  detail::settle_step(*prepared_);
  return prepared_->step_was_skipped;
}

torch::optim::Optimizer& Optimizer::inner() const {
  require_prepared(*prepared_);
  detail::settle_step(*prepared_);
  return *prepared_->inner;
}

std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups()
    const {
  require_prepared(*prepared_);
  return prepared_->inner->param_groups();
}

double Optimizer::learning_rate() const {
  const auto& groups = param_groups();
  if (groups.empty()) {
    throw ConfigError(
        "[train] the optimizer has no parameter groups, so no learning rate; "
        "add one with inner().add_param_group()");
  }
  return groups.front().options().get_lr();
}

}  // namespace accelerate
