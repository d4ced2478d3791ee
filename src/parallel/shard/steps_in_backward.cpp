#include "parallel/shard/steps_in_backward.h"

#include <algorithm>
#include <iterator>

#include <accelerate/error.h>

namespace accelerate::detail {

void StepsInBackward::begin(bool syncs) {
  steps_ = syncs && calls_.ends_window && calls_.ends_window();
  disk_.expect_steps(steps_);
}

void StepsInBackward::on_reduced(std::size_t unit) {
  if (!steps_) return;
  const std::vector<at::Tensor> locals = locals_of(unit);
  const bool has_gradient = std::ranges::any_of(
      locals, [](const at::Tensor& local) { return local.grad().defined(); });
  if (!has_gradient) return;
  if (has_stepped_[unit]) {
    throw ConfigError(
        "[parallel] each parameter must get the last gradient of a step from "
        "one backward where step_in_backward is true, but a second one "
        "followed before optimizer.step(); accumulate them (accumulate(), "
        "no_sync()), or set step_in_backward to false");
  }
  has_stepped_[unit] = true;
  std::vector<ParameterPart> parts = disk_.parts_of(locals);
  const std::size_t num_own = parts.size();
  // Usually the next.
  if (unit > 0)
    std::ranges::move(
        disk_.parts_of(locals_of(unit - 1)), std::back_inserter(parts));
  for (std::size_t i = 0; i < num_own; ++i)
    calls_.step_on_part(owner_, std::span(parts).subspan(i));
  for (const at::Tensor& local : locals) local.mutable_grad().reset();
}

std::vector<at::Tensor> StepsInBackward::locals_of(std::size_t unit) const {
  std::vector<at::Tensor> locals;
  for (const std::size_t i : units_[unit]->trainable())
    locals.push_back(units_[unit]->parameters()[i].local);
  return locals;
}

}  // namespace accelerate::detail
