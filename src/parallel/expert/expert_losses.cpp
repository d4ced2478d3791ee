#include "parallel/expert/expert_losses.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "parallel/expert/unrecorded.h"

namespace accelerate::detail {

namespace {

// The mean over rows; 0 with a graph if there are none.
at::Tensor mean_of_rows(const at::Tensor& rows) {
  return rows.sum(0) /
      static_cast<double>(std::max<std::int64_t>(rows.size(0), 1));
}

at::Tensor balance_loss(
    const RouterOptions& options,
    const Routing& routing,
    const at::Tensor& assigned,
    const Group& ranks) {
  at::Tensor shares;
  {
    const at::NoGradGuard no_grad;
    // Other ranks' counts cannot be replayed from a recording, so nothing
    // derived from them is recorded.
    const Unrecorded unrecorded;
    at::Tensor counts = assigned;
    if (options.balance_scope == BalanceScope::all_ranks) {
      counts = assigned.clone();
      ranks.all_reduce(counts);
    }
    shares = counts.to(at::kFloat) / counts.sum().clamp_min(1);
  }
  return (shares * mean_of_rows(routing.scores)).sum() *
      static_cast<double>(assigned.numel());
}

class WithLoss : public torch::autograd::Function<WithLoss> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& output,
      const at::Tensor& loss) {
    context->saved_data["loss"] = at::ones_like(loss);
    return output;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    return {std::move(gradients[0]), context->saved_data.at("loss").toTensor()};
  }
};

}  // namespace

void compute_losses(
    const RouterOptions& options,
    const Routing& routing,
    const at::Tensor& assigned,
    ExpertLayerState& state) {
  state.auxiliary = state.balance_loss = state.z_loss = at::Tensor();
  const auto add = [&](const at::Tensor& loss, double coefficient) {
    const at::Tensor weighted = loss * coefficient;
    state.auxiliary =
        state.auxiliary.defined() ? state.auxiliary + weighted : weighted;
    return loss.detach();
  };
  if (options.balance_loss_coefficient > 0) {
    state.balance_loss =
        add(balance_loss(options, routing, assigned, state.ranks.balance),
            options.balance_loss_coefficient);
  }
  if (options.z_loss_coefficient > 0) {
    const at::Tensor z = at::logsumexp(routing.logits, -1).square();
    state.z_loss = add(mean_of_rows(z), options.z_loss_coefficient);
  }
}

std::vector<NamedExpertLayer> expert_layers(const torch::nn::Module& model) {
  std::vector<NamedExpertLayer> layers;
  for (const auto& item : model.named_modules()) {
    if (auto* const layer = item.value()->as<ExpertLayerImpl>())
      layers.push_back({item.key(), layer});
  }
  return layers;
}

at::Tensor take_losses(const torch::nn::Module& model) {
  at::Tensor sum;
  for (const auto& [name, layer] : expert_layers(model)) {
    const at::Tensor own = std::exchange(layer->state().auxiliary, {});
    if (own.defined()) sum = sum.defined() ? sum + own : own;
  }
  return sum;
}

at::Tensor with_loss(const at::Tensor& output, const at::Tensor& loss) {
  return WithLoss::apply(output, loss);
}

}  // namespace accelerate::detail
