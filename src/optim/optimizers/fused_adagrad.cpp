#include "optim/optimizers/fused_steps.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>

namespace accelerate::detail {

void step_adagrad(
    torch::optim::Optimizer& optimizer,
    const at::Tensor& divisor) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    const auto& options =
        static_cast<const torch::optim::AdagradOptions&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!has_gradient(parameter)) continue;
      auto& state = state_of<torch::optim::AdagradParamState>(
          optimizer.state(), parameter, [&] {
            auto made = std::make_unique<torch::optim::AdagradParamState>();
            made->sum(
                at::full_like(parameter, options.initial_accumulator_value()));
            return made;
          });
      // The constructor created the state before the parameter was moved or got
      // a master weight.
      if (state.sum().scalar_type() != parameter.scalar_type() ||
          state.sum().device() != parameter.device()) {
        if (StepHooks::recording() != nullptr) throw_state_is_missing();
        state.sum(state.sum().to(parameter.options()));
      }
      // The constructor left the imaginary parts at 0.
      if (state.step() == 0 && parameter.is_complex())
        as_real(state.sum()).fill_(options.initial_accumulator_value());
      auto [step, count] = count_step(optimizer, parameter, state);
      batches.add(parameter, step, state.sum(), {}, {}, std::move(count));
    }
    batches.run(
        divisor, [&](const Batch& batch, const std::vector<at::Tensor>& steps) {
          run_with_rate<torch::optim::AdagradOptions>(
              optimizer, i, batch, [&](const auto& rate, const auto&... rest) {
                at::_fused_adagrad_(
                    batch.parameters,
                    batch.gradients,
                    batch.first,
                    steps,
                    rate,
                    options.lr_decay(),
                    options.weight_decay(),
                    options.eps(),
                    /*maximize=*/false,
                    rest...);
              });
        });
  }
}

}  // namespace accelerate::detail
