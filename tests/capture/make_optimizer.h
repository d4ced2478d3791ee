#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace accelerate::testing {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<torch::Tensor>)>;

/// Makes optimizers of class `O`.
template <class O, class Options>
MakeOptimizer optimizer_of(const Options& options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<O>(std::move(parameters), options);
  };
}

}  // namespace accelerate::testing
