#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/serialize/archive.h>

#include <accelerate/error.h>
#include <accelerate/optimizers.h>

#include "base/text/text.h"
#include "optim/optimizers/rate_options.h"

namespace accelerate::optim {

namespace {

using Visit = std::function<void(at::Tensor& parameter)>;

// Complex numbers as pairs of real ones: a row of n numbers has 2 n.
at::Tensor as_real_rows(const at::Tensor& tensor) {
  if (!tensor.is_complex()) return tensor;
  const at::Tensor pairs = at::view_as_real(tensor.resolve_conj());
  return pairs.dim() == 1 ? pairs : pairs.flatten(-2);
}

// Assigns what as_real_rows() returned for such a tensor.
void assign_real(const at::Tensor& tensor, const at::Tensor& real) {
  if (real.is_alias_of(tensor)) return;
  if (!tensor.is_complex()) {
    tensor.copy_(real);
    return;
  }
  const at::Tensor pairs = at::view_as_real(tensor);
  pairs.copy_(real.reshape(pairs.sizes()));
}

at::Tensor norm_of(const at::Tensor& gradient) {
  const at::Tensor real = as_real_rows(gradient);
  return real.norm(2, at::promote_types(real.scalar_type(), at::kFloat))
      .to(at::kCPU)
      .to(at::kDouble);
}

void clip_value(const at::Tensor& gradient, double bound) {
  const at::Tensor real =
      gradient.is_complex() ? at::view_as_real(gradient) : gradient;
  real.clamp_(-bound, bound);
}

class AfterGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterGradient(std::weak_ptr<Visit> visit)
      : visit_(std::move(visit)) {}

  // Called once per parameter, when its gradient is complete.
  void operator()(const at::Tensor& parameter) override {
    const auto visit = visit_.lock();
    if (!visit || !*visit) return;
    at::Tensor same = parameter;
    (*visit)(same);
  }

 private:
  std::weak_ptr<Visit> visit_;
};

}  // namespace

struct FusedBackwardOptimizer::Pass {
  /// Empty outside a fused backward, so that an ordinary backward leaves
  /// gradients.
  std::shared_ptr<Visit> visit = std::make_shared<Visit>();
};

FusedBackwardOptimizer::FusedBackwardOptimizer(
    std::vector<at::Tensor> parameters,
    std::unique_ptr<torch::optim::OptimizerOptions> options,
    std::optional<double> clip_grad_norm,
    std::optional<double> clip_grad_value)
    : Optimizer(std::move(parameters), std::move(options)),
      pass_(std::make_shared<Pass>()),
      clip_grad_norm_(clip_grad_norm),
      clip_grad_value_(clip_grad_value) {
  if ((clip_grad_norm_ && !(*clip_grad_norm_ > 0)) ||
      (clip_grad_value_ && !(*clip_grad_value_ > 0))) {
    throw ConfigError(
        "[optim] the clipping bound must be above 0, but is not; leave it "
        "unset to disable clipping");
  }
  for (const auto& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.requires_grad()) continue;
      if (torch::autograd::impl::post_acc_grad_hooks(parameter)) {
        throw ConfigError(
            "[optim] a parameter belongs to another optimizer that updates "
            "inside the backward");
      }
      torch::autograd::impl::set_post_acc_grad_hooks(
          parameter, std::make_unique<AfterGradient>(pass_->visit));
    }
  }
}

FusedBackwardOptimizer::~FusedBackwardOptimizer() {
  for (const auto& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.requires_grad()) {
        torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
      }
    }
  }
}

at::Tensor FusedBackwardOptimizer::step(LossClosure closure) {
  return closure ? closure() : at::Tensor();
}

void FusedBackwardOptimizer::fused_backward(
    const at::Tensor& loss,
    double learning_rate,
    const AverageGradient& average) {
  struct Close {
    Visit& visit;
    ~Close() { visit = nullptr; }
  };
  const auto run =
      [&](bool keeps_graph,
          const std::function<void(at::Tensor&, at::Tensor&)>& use) {
        *pass_->visit = [&](at::Tensor& parameter) {
          const at::NoGradGuard no_grad;
          at::Tensor gradient = parameter.grad().resolve_conj().resolve_neg();
          parameter.mutable_grad().reset();
          if (average) average(gradient);
          if (clip_grad_value_) clip_value(gradient, *clip_grad_value_);
          use(parameter, gradient);
        };
        const Close close{*pass_->visit};
        torch::autograd::backward({loss}, {}, keeps_graph);
      };

  double factor = 1;
  if (clip_grad_norm_) {
    std::vector<at::Tensor> norms;
    run(true, [&](at::Tensor&, at::Tensor& gradient) {
      norms.push_back(norm_of(gradient));
    });
    if (!norms.empty()) {
      const double norm = at::stack(norms).norm().item<double>();
      factor = std::min(1.0, *clip_grad_norm_ / (norm + 1e-6));
    }
  }
  begin_step();
  run(false, [&](at::Tensor& parameter, at::Tensor& gradient) {
    if (factor != 1) gradient.mul_(factor);
    update(parameter, gradient, learning_rate);
  });
}

Lomo::Lomo(std::vector<at::Tensor> parameters, const LomoOptions& options)
    : FusedBackwardOptimizer(
          std::move(parameters),
          std::make_unique<RateOptions>(),
          options.clip_grad_norm,
          options.clip_grad_value),
      options_(options) {}

void Lomo::update(
    at::Tensor& parameter,
    const at::Tensor& gradient,
    double learning_rate) {
  at::Tensor wide = parameter.detach().to(
      at::promote_types(parameter.scalar_type(), at::kFloat));
  if (options_.weight_decay != 0)
    wide.mul_(1 - learning_rate * options_.weight_decay);
  wide.add_(gradient.to(wide.scalar_type()), -learning_rate);
  if (!wide.is_alias_of(parameter)) parameter.detach().copy_(wide);
}

namespace {

/// Second moments: means of rows and columns for a matrix, otherwise one per
/// element.
struct AdaLomoState : torch::optim::OptimizerCloneableParamState<AdaLomoState> {
  at::Tensor row, column, full;

  void serialize(torch::serialize::OutputArchive& archive) const override {
    if (row.defined()) archive.write("row", row, /*is_buffer=*/true);
    if (column.defined()) archive.write("column", column, /*is_buffer=*/true);
    if (full.defined()) archive.write("whole", full, /*is_buffer=*/true);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    archive.try_read("row", row, /*is_buffer=*/true);
    archive.try_read("column", column, /*is_buffer=*/true);
    archive.try_read("whole", full, /*is_buffer=*/true);
  }
};

at::Tensor root_mean_square(const at::Tensor& tensor) {
  return tensor.norm() / std::sqrt(static_cast<double>(tensor.numel()));
}

}  // namespace

AdaLomo::AdaLomo(
    std::vector<at::Tensor> parameters,
    const AdaLomoOptions& options)
    : FusedBackwardOptimizer(
          std::move(parameters),
          std::make_unique<RateOptions>(),
          options.clip_grad_norm,
          options.clip_grad_value),
      options_(options) {
  if (!(options.decay_rate < 0)) {
    throw ConfigError(detail::format(
        "[optim] decay_rate of AdaLomo must be below 0, but is {}",
        options.decay_rate));
  }
  if (!(options.clip_threshold > 0)) {
    throw ConfigError(detail::format(
        "[optim] clip_threshold of AdaLomo must be above 0, but is {}",
        options.clip_threshold));
  }
}

void AdaLomo::begin_step() { ++step_; }

void AdaLomo::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdaLomoState, RateOptions>(archive, *this);
  archive.write("step", c10::IValue(step_));
}

void AdaLomo::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdaLomoState, RateOptions>(archive, *this);
  c10::IValue step;
  archive.read("step", step);
  step_ = step.toInt();
}

void AdaLomo::update(
    at::Tensor& parameter,
    const at::Tensor& gradient,
    double learning_rate) {
  if (parameter.numel() == 0) return;
  at::Tensor p = as_real_rows(parameter.detach());
  const at::ScalarType wide = at::promote_types(p.scalar_type(), at::kFloat);
  const at::Tensor g = as_real_rows(gradient).to(wide);
  p = p.to(wide);
  const double keep =
      1 - std::pow(static_cast<double>(step_), options_.decay_rate);
  const at::Tensor square = g.square() + options_.eps_square;
  const bool is_factored = g.dim() >= 2;
  auto& slot = state_[parameter.unsafeGetTensorImpl()];
  if (!slot) {
    auto made = std::make_unique<AdaLomoState>();
    if (is_factored) {
      made->row = at::zeros_like(square.mean(-1));
      made->column = at::zeros_like(square.mean(-2));
    } else {
      made->full = at::zeros_like(square);
    }
    slot = std::move(made);
  }
  auto& state = static_cast<AdaLomoState&>(*slot);
  at::Tensor update;
  if (is_factored) {
    state.row.mul_(keep).add_(square.mean(-1), 1 - keep);
    state.column.mul_(keep).add_(square.mean(-2), 1 - keep);
    const at::Tensor by_row = (state.row / state.row.mean(-1, /*keepdim=*/true))
                                  .rsqrt_()
                                  .unsqueeze(-1);
    update = by_row * state.column.unsqueeze(-2).rsqrt() * g;
  } else {
    state.full.mul_(keep).add_(square, 1 - keep);
    update = state.full.rsqrt() * g;
  }
  update.div_(
      (root_mean_square(update) / options_.clip_threshold).clamp_min(1.0));
  const at::Tensor rate =
      root_mean_square(p).clamp_min(options_.eps_scale) * learning_rate;
  if (options_.weight_decay != 0) p.mul_(1 - rate * options_.weight_decay);
  p.sub_(update * rate);
  assign_real(parameter.detach(), p);
}

}  // namespace accelerate::optim
