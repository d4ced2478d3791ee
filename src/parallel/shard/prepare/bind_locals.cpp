#include "parallel/shard/prepare/bind_locals.h"

#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdagradParamState;

// Returns the state that Adagrad's constructor would give the local, if `state`
// belongs to an Adagrad that has not stepped; otherwise null. Other optimizers
// create their state in the first step.
std::unique_ptr<AdagradParamState> fresh_adagrad_state(
    const torch::optim::OptimizerParamState& state,
    const torch::optim::OptimizerOptions& options,
    const at::Tensor& local) {
  const auto* const adagrad = dynamic_cast<const AdagradParamState*>(&state);
  const auto* const given = dynamic_cast<const AdagradOptions*>(&options);
  if (adagrad == nullptr || given == nullptr || adagrad->step() != 0)
    return nullptr;
  const at::NoGradGuard no_grad;
  auto fresh = std::make_unique<AdagradParamState>();
  fresh->step(0);
  fresh->sum(at::full_like(
      local.detach(),
      given->initial_accumulator_value(),
      local.options().requires_grad(false)));
  return fresh;
}

[[noreturn]] void refuse_state(const Parameter& row) {
  throw ConfigError(format(
      "[parallel] the optimizer has stepped on \"{}\" before prepare(), which "
      "shards the parameter; prepare a new optimizer, and load its state with "
      "load_state()",
      row.name));
}

}  // namespace

void require_movable_state(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table,
    const at::Tensor& parameter) {
  const auto& states = optimizer.state();
  const auto state = states.find(parameter.unsafeGetTensorImpl());
  const Parameter* const row = table.find(parameter);
  if (state == states.end() || row == nullptr) return;
  if (!fresh_adagrad_state(*state->second, optimizer.defaults(), parameter))
    refuse_state(*row);
}

void bind_locals(
    torch::optim::Optimizer& optimizer,
    const ParameterTable& table) {
  auto& states = optimizer.state();
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const Parameter* row = table.find(parameter);
      if (row == nullptr) continue;
      // A slice that replaces the full parameter has its own state as well.
      if (row->local.is_same(row->tensor) && row->layout.is_unsharded())
        continue;
      const auto state = states.find(parameter.unsafeGetTensorImpl());
      if (state != states.end()) {
        std::unique_ptr<torch::optim::OptimizerParamState> kept =
            fresh_adagrad_state(
                *state->second, optimizer.defaults(), row->local);
        if (!kept && !row->layout.is_unsharded()) refuse_state(*row);
        if (!kept) kept = std::move(state->second);
        states.erase(state);
        states[row->local.unsafeGetTensorImpl()] = std::move(kept);
      }
      parameter = row->local;
    }
  }
}

}  // namespace accelerate::detail
