#include <accelerate/model.h>

#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "train/session/session.h"
#include "train/step/gradients.h"
#include "train/step/plain_backwards.h"
#include "train/step/step_watch.h"

namespace accelerate::detail {

namespace {

// The casts that a forward may use, or else make and keep; null where it may do
// neither.
KeptCasts* casts_to_keep(PreparedModel& model) {
  if (!model.forward.kept_casts) return nullptr;
  const Session& session = *model.session;
  const StepClock& clock = session.clock;
  const std::int64_t window = clock.serial() - clock.length();
  // A graph contains its casts.
  if (std::exchange(model.forward.window_of_casts, window) != window ||
      session.capture.run != nullptr)
    model.forward.kept_casts->drop();
  if (session.capture.run != nullptr) return nullptr;
  // The last micro-step keeps nothing new, since forwards that follow it cannot
  // be told apart from it.
  const bool is_open =
      clock.position() != 0 || !model.forward.kept_casts->is_empty();
  return is_open ? model.forward.kept_casts.get() : nullptr;
}

}  // namespace

ForwardScope::ForwardScope(PreparedModel& model)
    : model_(model),
      part_(model.session->services.steps.get(), StepPart::forward, &model),
      has_work_(
          !model.strategies.is_idle() ||
          model.forward.autocast_dtype.has_value() ||
          model.placement.awaits_values ||
          (model.forward.layer_products &&
           model.forward.layer_products->has_work())) {
  if (!model.module) throw_released("the model again");
  if (has_work_) {
    begin();
  } else {
    model.runs_directly = !model.session->services.steps->is_heard();
  }
}

const bool& runs_directly(const PreparedModel& model) {
  return model.runs_directly;
}

void ForwardScope::begin() {
  if (model_.placement.awaits_values) {
    throw ConfigError(
        "[train] the model was built inside init_empty_weights() and has no "
        "values yet; load them with Accelerator::load_model() or "
        "load_state()");
  }
  if (model_.forward.autocast_dtype) {
    autocast_.emplace(
        model_.placement.device.type(),
        *model_.forward.autocast_dtype,
        AutocastOptions{
            .cache_enabled = model_.session->options.autocast.cache_enabled});
  }
  if (KeptCasts* const casts = casts_to_keep(model_))
    casts_ = std::make_shared<KeptCastScope>(*casts);
  if (model_.forward.layer_products &&
      model_.forward.layer_products->has_work())
    products_ =
        std::make_shared<LayerProductScope>(*model_.forward.layer_products);
  const StrategyTraits& traits = model_.strategies.traits();
  needs_outputs_ = model_.forward.autocast_dtype.has_value() ||
      traits.output_dtype.has_value() ||
      (at::GradMode::is_enabled() && traits.needs_outputs);
  try {
    model_.session->prepared.step_watch->require_steps_of_handles();
    if (model_.watches.plain_backwards) model_.watches.plain_backwards->watch();
    model_.strategies.before_forward();
  } catch (const std::exception& error) {
    fail(error);
  }
}

void drop_kept_casts(Session& session) {
  for (const auto& model : session.prepared.models) {
    if (model->forward.kept_casts) model->forward.kept_casts->drop();
  }
}

void drop_gradients(
    const PreparedModel& model,
    const std::vector<at::Tensor>& parameters,
    bool set_to_none) {
  // LibTorch's Module::zero_grad() detaches in place, which fails for gradients
  // that are views of communication buckets.
  const at::NoGradGuard no_grad;
  const LibraryCall call;
  for (const at::Tensor& parameter : parameters) {
    drop_gradient(parameter, set_to_none);
    model.strategies.drop_gradient(parameter);
  }
  // The optimizer may step on another tensor.
  for (const Parameter& row : model.table.rows())
    drop_gradient(row.local, set_to_none);
}

at::Tensor adapt_input(const PreparedModel& model, const at::Tensor& input) {
  const auto& dtype = model.strategies.traits().input_dtype;
  if (!dtype || !input.defined() || !input.is_floating_point()) return input;
  return input.to(*dtype);
}

at::Tensor ForwardScope::restore_precision(const at::Tensor& output) const {
  const auto& dtype = model_.strategies.traits().output_dtype;
  if (dtype && output.defined() && output.is_floating_point())
    return output.to(*dtype);
  if (!model_.forward.autocast_dtype || !output.defined() ||
      output.scalar_type() != *model_.forward.autocast_dtype) {
    return output;
  }
  return output.to(at::kFloat);
}

void ForwardScope::finish(const std::vector<at::Tensor>* outputs) {
  autocast_.reset();
  products_.reset();
  casts_.reset();
  if (!has_work_) return;
  ForwardOutputs seen;
  if (outputs != nullptr) seen = {true, *outputs};
  model_.strategies.after_forward(seen);
}

void ForwardScope::fail(const std::exception& error) {
  autocast_.reset();
  products_.reset();
  casts_.reset();
  if (const auto better = model_.strategies.on_failure(error))
    std::rethrow_exception(better);
  throw;
}

}  // namespace accelerate::detail
