#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "gate/gate.h"

namespace accelerate::detail {

/// What completes the result of a layer.
struct LayerCompletion {
  /// Whether an argument is a bias of the layer.
  std::function<bool(const c10::IValue&)> is_bias;
  /// Runs the operator, which adds the bias to the product in place.
  std::function<void(GatedCall&)> add_bias;
  /// Returns the layer's result, given the sum or, if no bias was added, the
  /// product.
  std::function<at::Tensor(const at::Tensor&)> finish;
};

/// A product to which the program may add a bias: for inputs that do not have
/// two dimensions, torch::nn::functional::linear multiplies, and then adds the
/// bias in place. Until then, the layer's result is not known.
class PendingProduct final
    : public GateKeeper,
      public std::enable_shared_from_this<PendingProduct> {
 public:
  /// Returns a tensor without memory that stands for `product` in the program.
  /// The first operator on it turns it into the layer's result: if the operator
  /// adds a bias of the layer in place, the result for the sum, otherwise the
  /// result for the product, on which the operator is then run. From there on
  /// it is an ordinary tensor.
  static at::Tensor placeholder(at::Tensor product, LayerCompletion layer);

  void call(GatedCall& call) override;

 private:
  PendingProduct(at::Tensor product, LayerCompletion layer);

  [[nodiscard]] bool adds_bias(GatedCall& call, const at::Tensor& own) const;

  at::Tensor product_;
  LayerCompletion layer_;
};

}  // namespace accelerate::detail
