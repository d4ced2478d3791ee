#include "optim/optimizers/momentum.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using torch::optim::OptimizerOptions;

template <class Options>
bool set_first_beta(OptimizerOptions& options, const double* momentum) {
  auto* typed = dynamic_cast<Options*>(&options);
  if (typed == nullptr) return false;
  if (momentum != nullptr)
    typed->betas({*momentum, std::get<1>(typed->betas())});
  return true;
}

template <class Options>
bool set_plain_momentum(OptimizerOptions& options, const double* momentum) {
  auto* typed = dynamic_cast<Options*>(&options);
  if (typed == nullptr) return false;
  if (momentum != nullptr) typed->momentum(*momentum);
  return true;
}

// LibTorch's option classes have no common interface for momentum. If
// `momentum` is null, only checks whether there is one.
bool set_known(OptimizerOptions& options, const double* momentum) {
  return set_plain_momentum<torch::optim::SGDOptions>(options, momentum) ||
      set_first_beta<torch::optim::AdamOptions>(options, momentum) ||
      set_first_beta<torch::optim::AdamWOptions>(options, momentum) ||
      set_plain_momentum<torch::optim::RMSpropOptions>(options, momentum);
}

}  // namespace

void set_momentum(
    OptimizerOptions& options,
    double momentum,
    const optim::SetMomentum& custom) {
  if (custom) {
    custom(options, momentum);
  } else {
    set_known(options, &momentum);
  }
}

void require_momentum(
    torch::optim::Optimizer& optimizer,
    const optim::SetMomentum& custom,
    std::string_view schedule) {
  if (custom) return;
  for (auto& group : optimizer.param_groups()) {
    if (!set_known(group.options(), nullptr)) {
      throw ConfigError(format(
          "[optim] {} was asked to cycle the momentum of an optimizer without "
          "a known one; set cycle_momentum to false, or give set_momentum",
          schedule));
    }
  }
}

}  // namespace accelerate::detail
