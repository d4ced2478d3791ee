#include <cmath>
#include <numbers>

#include <torch/optim/optimizer.h>

#include <accelerate/error.h>
#include <accelerate/schedulers.h>

#include "base/require.h"
#include "base/text/text.h"

namespace accelerate::optim {

namespace {

using accelerate::detail::format;

// Chained schedules see learning rates that others have changed, so schedules
// that scale multiply the current learning rate by a factor, as PyTorch does.

void require_lambdas(
    const std::vector<LRLambda>& lambdas,
    std::size_t num_groups) {
  if (lambdas.size() != 1 && lambdas.size() != num_groups) {
    throw ConfigError(format(
        "[optim] a schedule must get one function, or one per group, but got "
        "{} for {} parameter groups",
        lambdas.size(),
        num_groups));
  }
  for (const LRLambda& lambda : lambdas) {
    if (!lambda)
      throw ConfigError(
          "[optim] the functions of a schedule must not be empty, but one is");
  }
}

const LRLambda& lambda_of(
    const std::vector<LRLambda>& lambdas,
    std::size_t group) {
  return lambdas.size() == 1 ? lambdas[0] : lambdas[group];
}

std::int64_t require_positive(std::int64_t value, const char* name) {
  return detail::require_at_least("optim", name, value, 1);
}

void require_not_negative(std::int64_t value, const char* name) {
  detail::require_at_least("optim", name, value, 0);
}

}  // namespace

LambdaLR::LambdaLR(std::vector<LRLambda> lr_lambdas)
    : lr_lambdas_(std::move(lr_lambdas)) {}
LambdaLR::LambdaLR(LRLambda lr_lambda) : lr_lambdas_{std::move(lr_lambda)} {}
LambdaLR::LambdaLR(
    torch::optim::Optimizer& optimizer,
    std::vector<LRLambda> lr_lambdas)
    : LambdaLR(std::move(lr_lambdas)) {
  bind(optimizer);
}
LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, LRLambda lr_lambda)
    : LambdaLR(std::move(lr_lambda)) {
  bind(optimizer);
}

void LambdaLR::begin() { require_lambdas(lr_lambdas_, num_groups()); }

double LambdaLR::get_lr(const LRContext& at) const {
  return at.base_lr * lambda_of(lr_lambdas_, at.group)(at.step);
}

MultiplicativeLR::MultiplicativeLR(std::vector<LRLambda> lr_lambdas)
    : lr_lambdas_(std::move(lr_lambdas)) {}
MultiplicativeLR::MultiplicativeLR(LRLambda lr_lambda)
    : lr_lambdas_{std::move(lr_lambda)} {}
MultiplicativeLR::MultiplicativeLR(
    torch::optim::Optimizer& optimizer,
    std::vector<LRLambda> lr_lambdas)
    : MultiplicativeLR(std::move(lr_lambdas)) {
  bind(optimizer);
}
MultiplicativeLR::MultiplicativeLR(
    torch::optim::Optimizer& optimizer,
    LRLambda lr_lambda)
    : MultiplicativeLR(std::move(lr_lambda)) {
  bind(optimizer);
}

void MultiplicativeLR::begin() { require_lambdas(lr_lambdas_, num_groups()); }

// Continues with the learning rate that the previous schedule left.
void MultiplicativeLR::restart() {
  step_ = 0;
  apply();
}

double MultiplicativeLR::get_lr(const LRContext& at) const {
  return at.step > 0 ? at.lr * lambda_of(lr_lambdas_, at.group)(at.step)
                     : at.lr;
}

StepLR::StepLR(const StepLROptions& options) : options_(options) {
  require_positive(options_.step_size, "step_size");
}
StepLR::StepLR(torch::optim::Optimizer& optimizer, const StepLROptions& options)
    : StepLR(options) {
  bind(optimizer);
}

double StepLR::get_lr(const LRContext& at) const {
  return at.step > 0 && at.step % options_.step_size == 0
      ? at.lr * options_.gamma
      : at.lr;
}

MultiStepLR::MultiStepLR(MultiStepLROptions options)
    : options_(std::move(options)) {}
MultiStepLR::MultiStepLR(
    torch::optim::Optimizer& optimizer,
    MultiStepLROptions options)
    : MultiStepLR(std::move(options)) {
  bind(optimizer);
}

double MultiStepLR::get_lr(const LRContext& at) const {
  double lr = at.lr;
  for (const std::int64_t milestone : options_.milestones) {
    if (milestone == at.step) lr *= options_.gamma;
  }
  return lr;
}

ConstantLR::ConstantLR(const ConstantLROptions& options) : options_(options) {
  require_not_negative(options_.total_iters, "total_iters");
  if (!(options_.factor > 0 && options_.factor <= 1)) {
    throw ConfigError(format(
        "[optim] the factor of ConstantLR must be above 0 "
        "and at most 1, but is {}",
        options_.factor));
  }
}
ConstantLR::ConstantLR(
    torch::optim::Optimizer& optimizer,
    const ConstantLROptions& options)
    : ConstantLR(options) {
  bind(optimizer);
}

double ConstantLR::get_lr(const LRContext& at) const {
  if (at.step == 0) return at.lr * options_.factor;
  return at.step == options_.total_iters ? at.lr * (1.0 / options_.factor)
                                         : at.lr;
}

LinearLR::LinearLR(const LinearLROptions& options) : options_(options) {
  require_positive(options_.total_iters, "total_iters");
  if (!(options_.start_factor > 0 && options_.start_factor <= 1)) {
    throw ConfigError(format(
        "[optim] the start_factor of LinearLR must be above 0 and at most 1, "
        "but is {}",
        options_.start_factor));
  }
  if (!(options_.end_factor >= 0 && options_.end_factor <= 1)) {
    throw ConfigError(format(
        "[optim] the end_factor of LinearLR must be from 0 to 1, but is {}",
        options_.end_factor));
  }
}
LinearLR::LinearLR(
    torch::optim::Optimizer& optimizer,
    const LinearLROptions& options)
    : LinearLR(options) {
  bind(optimizer);
}

double LinearLR::get_lr(const LRContext& at) const {
  if (at.step == 0) return at.lr * options_.start_factor;
  if (at.step > options_.total_iters) return at.lr;
  const double rise = options_.end_factor - options_.start_factor;
  const double before =
      static_cast<double>(options_.total_iters) * options_.start_factor +
      static_cast<double>(at.step - 1) * rise;
  return at.lr * (1.0 + rise / before);
}

ExponentialLR::ExponentialLR(double gamma) : gamma_(gamma) {}
ExponentialLR::ExponentialLR(torch::optim::Optimizer& optimizer, double gamma)
    : ExponentialLR(gamma) {
  bind(optimizer);
}

double ExponentialLR::get_lr(const LRContext& at) const {
  return at.step == 0 ? at.lr : at.lr * gamma_;
}

PolynomialLR::PolynomialLR(const PolynomialLROptions& options)
    : options_(options) {
  require_positive(options_.total_iters, "total_iters");
}
PolynomialLR::PolynomialLR(
    torch::optim::Optimizer& optimizer,
    const PolynomialLROptions& options)
    : PolynomialLR(options) {
  bind(optimizer);
}

double PolynomialLR::get_lr(const LRContext& at) const {
  if (at.step == 0 || at.step > options_.total_iters) return at.lr;
  const auto total = static_cast<double>(options_.total_iters);
  const auto step = static_cast<double>(at.step);
  return at.lr *
      std::pow(
             (1.0 - step / total) / (1.0 - (step - 1) / total), options_.power);
}

CosineAnnealingLR::CosineAnnealingLR(const CosineAnnealingLROptions& options)
    : options_(options) {
  require_positive(options_.T_max, "T_max");
}
CosineAnnealingLR::CosineAnnealingLR(
    torch::optim::Optimizer& optimizer,
    const CosineAnnealingLROptions& options)
    : CosineAnnealingLR(options) {
  bind(optimizer);
}

double CosineAnnealingLR::get_lr(const LRContext& at) const {
  using std::numbers::pi;
  if (at.step == 0) return at.lr;
  const auto period = static_cast<double>(options_.T_max);
  const auto step = static_cast<double>(at.step);
  // At the minimum the quotient below is 0 / 0.
  if ((at.step - 1 - options_.T_max) % (2 * options_.T_max) == 0) {
    return at.lr +
        (at.base_lr - options_.eta_min) * (1 - std::cos(pi / period)) / 2;
  }
  return (1 + std::cos(pi * step / period)) /
      (1 + std::cos(pi * (step - 1) / period)) * (at.lr - options_.eta_min) +
      options_.eta_min;
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(
    const CosineAnnealingWarmRestartsOptions& options)
    : options_(options) {
  require_positive(options_.T_0, "T_0");
  require_positive(options_.T_mult, "T_mult");
}
CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(
    torch::optim::Optimizer& optimizer,
    const CosineAnnealingWarmRestartsOptions& options)
    : CosineAnnealingWarmRestarts(options) {
  bind(optimizer);
}

CosineAnnealingWarmRestarts::Cycle CosineAnnealingWarmRestarts::cycle_at(
    std::int64_t step) const {
  Cycle cycle =
      loaded_.value_or(Cycle{0, 0, static_cast<double>(options_.T_0)});
  cycle.position += static_cast<double>(step - cycle.step);
  cycle.step = step;
  if (options_.T_mult == 1) {
    cycle.position = std::fmod(cycle.position, cycle.length);
  }
  while (cycle.position >= cycle.length) {
    cycle.position -= cycle.length;
    cycle.length *= static_cast<double>(options_.T_mult);
  }
  return cycle;
}

double CosineAnnealingWarmRestarts::get_lr(const LRContext& at) const {
  const Cycle cycle = cycle_at(at.step);
  return options_.eta_min +
      (at.base_lr - options_.eta_min) *
      (1 + std::cos(std::numbers::pi * (cycle.position / cycle.length))) / 2;
}

void CosineAnnealingWarmRestarts::apply() {
  // The schedule was restarted.
  if (step_ == 0) loaded_.reset();
  LRScheduler::apply();
}

StateDict CosineAnnealingWarmRestarts::state_dict() const {
  StateDict state = LRScheduler::state_dict();
  const Cycle cycle = cycle_at(step_);
  state.set("T_0", options_.T_0);
  state.set("T_mult", options_.T_mult);
  state.set("eta_min", options_.eta_min);
  state.set("T_cur", cycle.position);
  state.set("T_i", cycle.length);
  return state;
}

void CosineAnnealingWarmRestarts::load_state_dict(const StateDict& state) {
  std::optional<Cycle> loaded;
  // Without them, the first cycle began at step 0.
  if (state.contains("T_cur") && state.contains("T_i")) {
    loaded = Cycle{
        state.get<std::int64_t>("step"),
        state.get<double>("T_cur"),
        state.get<double>("T_i")};
    const bool is_place = loaded->position >= 0 && loaded->length >= 1 &&
        std::isfinite(loaded->position) && std::isfinite(loaded->length);
    if (!is_place) {
      throw CheckpointError(format(
          "[optim] the state of CosineAnnealingWarmRestarts is at step {} of a "
          "cycle of {} steps (T_cur, T_i)",
          loaded->position,
          loaded->length));
    }
  }
  LRScheduler::load_state_dict(state);
  loaded_ = loaded;
}

}  // namespace accelerate::optim
