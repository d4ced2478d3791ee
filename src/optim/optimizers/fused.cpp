#include "optim/optimizers/fused.h"

#include <algorithm>
#include <typeinfo>

#include <ATen/core/grad_mode.h>
#include <torch/optim/rmsprop.h>

#include <accelerate/error.h>
#include <accelerate/optimizers.h>

#include "optim/optimizers/fused_steps.h"

namespace accelerate {

namespace detail {

bool has_gradient(const at::Tensor& parameter) {
  if (!parameter.grad().defined()) return false;
  if (parameter.grad().is_sparse()) {
    throw ConfigError(
        "[optim] gradients must be dense for a fused optimizer, but one is "
        "sparse; use the torch::optim class of the same name, or an embedding "
        "without sparse gradients");
  }
  return true;
}

// State created while a step is recorded would be created in each replay.
[[noreturn]] void throw_state_is_missing() {
  throw ConfigError(
      "[optim] a step was recorded before the optimizer had its state for all "
      "parameters with gradients; let more steps run first (warmup_steps)");
}

}  // namespace detail

namespace {

using detail::LossClosure;
using detail::needs_float_sgd;
using detail::step_adagrad;
using detail::step_adam;
using detail::step_adamw;
using detail::step_rmsprop;
using detail::step_sgd;
using detail::StepHooks;
using torch::optim::Optimizer;

at::Tensor run_closure(const LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode with_gradients(true);
  return closure();
}

// LibTorch's own classes keep LibTorch's step for tensors that it treats
// specially.
bool has_unusual_tensors(const Optimizer& optimizer) {
  return std::ranges::any_of(optimizer.param_groups(), [](const auto& group) {
    return std::ranges::any_of(group.params(), [](const at::Tensor& parameter) {
      const at::Tensor& gradient = parameter.grad();
      return gradient.defined() &&
          (parameter.is_complex() || gradient.layout() != at::kStrided);
    });
  });
}

using Step = void (*)(Optimizer&, const at::Tensor& divisor);

template <Step kStep>
at::Tensor step_fused(
    Optimizer& optimizer,
    const LossClosure& closure,
    const at::Tensor& divisor) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = run_closure(closure);
  kStep(optimizer, divisor);
  return loss;
}

template <Step kStep>
at::Tensor step_like_libtorch(
    Optimizer& optimizer,
    const LossClosure& closure,
    const at::Tensor& divisor) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = run_closure(closure);
  if (has_unusual_tensors(optimizer)) {
    if (StepHooks::recording() != nullptr) {
      throw ConfigError(
          "[optim] a step with sparse gradients or complex parameters cannot "
          "be recorded, since LibTorch steps one parameter at a time");
    }
    optimizer.step();
  } else {
    kStep(optimizer, divisor);
  }
  return loss;
}

}  // namespace

detail::FusedStep detail::fused_step_of(const Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::AdamW))
    return &step_like_libtorch<&step_adamw>;
  if (type == typeid(torch::optim::Adam))
    return &step_like_libtorch<&step_adam>;
  if (type == typeid(torch::optim::SGD)) return &step_like_libtorch<&step_sgd>;
  if (type == typeid(torch::optim::Adagrad))
    return &step_like_libtorch<&step_adagrad>;
  if (type == typeid(torch::optim::RMSprop))
    return &step_like_libtorch<&step_rmsprop>;
  if (type == typeid(optim::AdamW)) return &step_fused<&step_adamw>;
  if (type == typeid(optim::Adam)) return &step_fused<&step_adam>;
  if (type == typeid(optim::SGD)) return &step_fused<&step_sgd>;
  if (type == typeid(optim::Adagrad)) return &step_fused<&step_adagrad>;
  return nullptr;
}

bool detail::can_divide(const Optimizer& optimizer) {
  const FusedStep step = fused_step_of(optimizer);
  if (step == nullptr || step == &step_like_libtorch<&step_rmsprop> ||
      has_unusual_tensors(optimizer)) {
    return false;
  }
  const bool is_sgd =
      step == &step_like_libtorch<&step_sgd> || step == &step_fused<&step_sgd>;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      // The kernels' divisor is a float.
      if (parameter.scalar_type() == at::kDouble) return false;
      if (is_sgd && needs_float_sgd(parameter)) return false;
    }
  }
  return true;
}

namespace optim {

at::Tensor AdamW::step(LossClosure closure) {
  return step_fused<&step_adamw>(*this, closure, {});
}

at::Tensor Adam::step(LossClosure closure) {
  return step_fused<&step_adam>(*this, closure, {});
}

at::Tensor SGD::step(LossClosure closure) {
  return step_fused<&step_sgd>(*this, closure, {});
}

at::Tensor Adagrad::step(LossClosure closure) {
  return step_fused<&step_adagrad>(*this, closure, {});
}

}  // namespace optim

}  // namespace accelerate
