#include "optim/optimizers/fused_steps.h"

#include <memory>
#include <vector>

#include <ATen/Functions.h>
#include <torch/optim/sgd.h>

namespace accelerate::detail {

namespace {

void run_sgd_kernel(
    at::TensorList parameters,
    at::TensorList gradients,
    at::TensorList momenta,
    const torch::optim::SGDOptions& options,
    bool is_first_step,
    const auto& rate,
    const auto&... rest) {
  at::_fused_sgd_(
      parameters,
      gradients,
      momenta,
      options.weight_decay(),
      options.momentum(),
      rate,
      options.dampening(),
      options.nesterov(),
      /*maximize=*/false,
      is_first_step,
      rest...);
}

// Computes in fp32, one parameter at a time, so that only one is in memory
// twice.
void run_float_sgd(
    const Batch& batch,
    const torch::optim::SGDOptions& options,
    bool is_first_step) {
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    const at::Tensor parameter = batch.parameters[i].to(at::kFloat);
    const at::Tensor gradient = batch.gradients[i].to(at::kFloat);
    std::vector<at::Tensor> momentum;
    if (!batch.first.empty()) momentum = {batch.first[i].to(at::kFloat)};
    run_sgd_kernel(
        {parameter},
        {gradient},
        momentum,
        options,
        is_first_step,
        options.lr());
    batch.parameters[i].copy_(parameter);
    if (!batch.first.empty()) batch.first[i].copy_(momentum[0]);
  }
}

}  // namespace

// LibTorch's SGD kernel for 16-bit numbers on the CPU (2.11) changes only the
// last few elements of a parameter.
bool needs_float_sgd(const at::Tensor& parameter) {
  return parameter.is_cpu() &&
      at::isReducedFloatingType(parameter.scalar_type());
}

void step_sgd(torch::optim::Optimizer& optimizer, const at::Tensor& divisor) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    const auto& options =
        static_cast<const torch::optim::SGDOptions&>(group.options());
    Batches batches;
    // Step 0 marks the first step, in which the kernel fills the momentum
    // buffer.
    for (const at::Tensor& parameter : group.params()) {
      if (!has_gradient(parameter)) continue;
      if (options.momentum() == 0) {
        batches.add(parameter, 1, {});
        continue;
      }
      auto& state = state_of<torch::optim::SGDParamState>(
          optimizer.state(), parameter, [] {
            return std::make_unique<torch::optim::SGDParamState>();
          });
      const bool is_first = !state.momentum_buffer().defined();
      if (is_first && StepHooks::recording() != nullptr)
        throw_state_is_missing();
      if (is_first) {
        state.momentum_buffer(
            at::empty_like(parameter, at::MemoryFormat::Preserve));
        change_state<torch::optim::SGDParamState>(
            optimizer,
            parameter,
            state,
            [](auto&) {},
            [](auto& made) { made.momentum_buffer({}); });
      }
      batches.add(parameter, is_first ? 0 : 1, state.momentum_buffer());
    }
    batches.run(
        divisor, [&](const Batch& batch, const std::vector<at::Tensor>&) {
          const bool is_first_step = batch.step == 0;
          if (needs_float_sgd(batch.parameters[0])) {
            run_float_sgd(batch, options, is_first_step);
          } else {
            run_with_rate<torch::optim::SGDOptions>(
                optimizer, i, batch, [&](const auto&... rate) {
                  run_sgd_kernel(
                      batch.parameters,
                      batch.gradients,
                      batch.first,
                      options,
                      is_first_step,
                      rate...);
                });
          }
        });
  }
}

}  // namespace accelerate::detail
