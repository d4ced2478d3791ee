#include "optim/optimizers/fused_steps.h"

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

namespace accelerate::detail {

namespace {

using torch::optim::Optimizer;

// The states and options of Adam and AdamW have the same fields.
template <class State, class Options, class Kernel>
void adam_step(
    Optimizer& optimizer,
    const at::Tensor& divisor,
    Kernel&& kernel) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    const auto& options = static_cast<const Options&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!has_gradient(parameter)) continue;
      State& state = state_of<State>(optimizer.state(), parameter, [&] {
        auto made = std::make_unique<State>();
        made->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        made->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        return made;
      });
      if (options.amsgrad() && !state.max_exp_avg_sq().defined()) {
        if (StepHooks::recording() != nullptr) throw_state_is_missing();
        state.max_exp_avg_sq(
            at::zeros_like(parameter, at::MemoryFormat::Preserve));
      }
      auto [step, count] = count_step(optimizer, parameter, state);
      batches.add(
          parameter,
          step,
          state.exp_avg(),
          state.exp_avg_sq(),
          options.amsgrad() ? state.max_exp_avg_sq() : at::Tensor(),
          std::move(count));
    }
    batches.run(
        divisor, [&](const Batch& batch, const std::vector<at::Tensor>& steps) {
          run_with_rate<Options>(
              optimizer, i, batch, [&](const auto& rate, const auto&... rest) {
                kernel(
                    batch.parameters,
                    batch.gradients,
                    batch.first,
                    batch.second,
                    batch.largest,
                    steps,
                    rate,
                    std::get<0>(options.betas()),
                    std::get<1>(options.betas()),
                    options.weight_decay(),
                    options.eps(),
                    options.amsgrad(),
                    /*maximize=*/false,
                    rest...);
              });
        });
  }
}

}  // namespace

void step_adamw(torch::optim::Optimizer& optimizer, const at::Tensor& divisor) {
  adam_step<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(
      optimizer, divisor, [](const auto&... arguments) {
        at::_fused_adamw_(arguments...);
      });
}

void step_adam(torch::optim::Optimizer& optimizer, const at::Tensor& divisor) {
  adam_step<torch::optim::AdamParamState, torch::optim::AdamOptions>(
      optimizer, divisor, [](const auto&... arguments) {
        at::_fused_adam_(arguments...);
      });
}

}  // namespace accelerate::detail
