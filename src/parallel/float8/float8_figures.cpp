#include "parallel/float8/float8_figures.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/objects.h>

namespace accelerate::detail {

void Float8Figures::begin_step(const Float8Layers& layers) {
  is_measuring_ = interval_ > 0 && (num_steps_ + 1) % interval_ == 0;
  for (const auto& layer : layers) layer->is_measured = is_measuring_;
}

void Float8Figures::end_step(const Float8Layers& layers) {
  ++num_steps_;
  if (is_measuring_) {
    std::vector<std::pair<std::string, double>> figures;
    const at::Tensor numbers = numbers_of_ranks(layers);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      std::ranges::move(
          Float8Statistics::figures_of(
              layers[i]->name, numbers[static_cast<std::int64_t>(i)]),
          std::back_inserter(figures));
    }
    if (mesh_.degree(Axis::pipeline) > 1)
      figures = gather_object(figures, mesh_.group(Axis::pipeline));
    figures_.clear();
    for (auto& [name, value] : figures)
      figures_.push_back({std::move(name), value});
  }
  begin_step(layers);
}

std::vector<StepFigure> Float8Figures::take() {
  return std::exchange(figures_, {});
}

at::Tensor Float8Figures::numbers_of_ranks(const Float8Layers& layers) const {
  if (layers.empty()) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> taken;
  for (const auto& layer : layers) taken.push_back(layer->statistics.take());
  const at::Tensor all = at::stack(taken).to(mesh_.world().device());
  at::Tensor sums = all.narrow(1, 0, Float8Statistics::kNumSums).contiguous();
  at::Tensor extremes =
      all.narrow(1, Float8Statistics::kNumSums, Float8Statistics::kNumExtremes)
          .contiguous();
  const auto combine = [&](const Group& group) {
    group.all_reduce(sums, ReduceOp::sum);
    group.all_reduce(extremes, ReduceOp::max);
  };
  combine(mesh_.gradient_group());
  if (mesh_.degree(Axis::tensor) > 1) combine(mesh_.group(Axis::tensor));
  // On the host: figures are logged.
  return at::cat({sums, extremes}, 1).cpu();
}

}  // namespace accelerate::detail
