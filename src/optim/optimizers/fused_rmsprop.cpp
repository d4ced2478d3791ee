#include "optim/optimizers/fused_steps.h"

#include <memory>
#include <type_traits>
#include <vector>

#include <ATen/Functions.h>
#include <torch/optim/rmsprop.h>

#include <accelerate/error.h>

namespace accelerate::detail {

namespace {

// LibTorch has no fused kernel for it, but some that take lists.
void run_rmsprop(
    const Batch& batch,
    const torch::optim::RMSpropOptions& options,
    const auto& rate,
    const auto&...) {
  std::vector<at::Tensor> gradients = batch.gradients;
  if (options.weight_decay() != 0)
    gradients =
        at::_foreach_add(gradients, batch.parameters, options.weight_decay());
  const double weight = 1 - options.alpha();
  at::_foreach_mul_(batch.first, options.alpha());
  at::_foreach_addcmul_(batch.first, gradients, gradients, weight);
  std::vector<at::Tensor> divisors;
  if (options.centered()) {
    at::_foreach_mul_(batch.largest, options.alpha());
    at::_foreach_add_(batch.largest, gradients, weight);
    divisors =
        at::_foreach_addcmul(batch.first, batch.largest, batch.largest, -1);
    at::_foreach_sqrt_(divisors);
  } else {
    divisors = at::_foreach_sqrt(batch.first);
  }
  at::_foreach_add_(divisors, options.eps());
  if (options.momentum() > 0) {
    at::_foreach_mul_(batch.second, options.momentum());
    at::_foreach_addcdiv_(batch.second, gradients, divisors);
  }
  if constexpr (std::is_same_v<decltype(rate), const at::Tensor&>) {
    const std::vector<at::Tensor> changes = options.momentum() > 0
        ? at::_foreach_mul(batch.second, rate)
        : at::_foreach_mul(at::_foreach_div(gradients, divisors), rate);
    at::_foreach_sub_(batch.parameters, changes);
  } else if (options.momentum() > 0) {
    at::_foreach_add_(batch.parameters, batch.second, -rate);
  } else {
    at::_foreach_addcdiv_(batch.parameters, gradients, divisors, -rate);
  }
}

}  // namespace

void step_rmsprop(
    torch::optim::Optimizer& optimizer,
    const at::Tensor& divisor) {
  const StepHooks* const hooks = StepHooks::recording();
  if (hooks != nullptr && hooks->found_inf().defined()) {
    throw ConfigError(
        "[optim] a step of RMSprop cannot be recorded with fp16, since its "
        "kernels do not skip steps; use bf16, or Adam");
  }
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    const auto& options =
        static_cast<const torch::optim::RMSpropOptions&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!has_gradient(parameter)) continue;
      const auto zeros = [&] {
        return at::zeros_like(parameter, at::MemoryFormat::Preserve);
      };
      auto& state = state_of<torch::optim::RMSpropParamState>(
          optimizer.state(), parameter, [&] {
            auto made = std::make_unique<torch::optim::RMSpropParamState>();
            made->square_avg(zeros());
            return made;
          });
      if (hooks != nullptr &&
          ((options.momentum() > 0 && !state.momentum_buffer().defined()) ||
           (options.centered() && !state.grad_avg().defined()))) {
        throw_state_is_missing();
      }
      if (options.momentum() > 0 && !state.momentum_buffer().defined())
        state.momentum_buffer(zeros());
      if (options.centered() && !state.grad_avg().defined())
        state.grad_avg(zeros());
      count_step(optimizer, parameter, state);
      batches.add(
          parameter,
          1,
          state.square_avg(),
          options.momentum() > 0 ? state.momentum_buffer() : at::Tensor(),
          options.centered() ? state.grad_avg() : at::Tensor());
    }
    batches.run(
        divisor, [&](const Batch& batch, const std::vector<at::Tensor>&) {
          run_with_rate<torch::optim::RMSpropOptions>(
              optimizer, i, batch, [&](const auto&... rate) {
                run_rmsprop(batch, options, rate...);
              });
        });
  }
}

}  // namespace accelerate::detail
