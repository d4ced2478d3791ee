#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "gate/gate.h"

namespace accelerate::detail {

/// A weight matrix and the vector that its module may add to products with it.
struct LayerProduct {
  /// How the program has used products with the weight so far.
  enum class Use { unknown, adds_bias, keeps_product };

  at::Tensor weight;
  at::Tensor bias;
  std::atomic<Use> use = Use::unknown;
};

/// A product that was computed with its layer's bias, before it is known
/// whether the program adds that.
class BiasedProduct final : public GateKeeper,
                            public std::enable_shared_from_this<BiasedProduct> {
 public:
  /// Computes the product of `input` and `transposed`, the transpose of the
  /// layer's weight, and returns a tensor without memory that stands for it
  /// until settle(), which the first operator on it calls.
  static at::Tensor placeholder(
      std::shared_ptr<LayerProduct> layer,
      const at::Tensor& input,
      const at::Tensor& transposed);

  /// Makes a placeholder an ordinary tensor: the sum if the program adds the
  /// bias, the product otherwise. Returns false for any other tensor.
  static bool settle(const at::Tensor& tensor, bool adds_bias);

  void call(GatedCall& call) override;

 private:
  BiasedProduct(
      std::shared_ptr<LayerProduct> layer,
      const at::Tensor& input,
      const at::Tensor& transposed);

  /// Computes the product, as the program would have.
  [[nodiscard]] at::Tensor without_bias() const;

  std::shared_ptr<LayerProduct> layer_;
  at::Tensor input_, transposed_, sum_;
  std::uint32_t input_version_, weight_version_;
  bool has_gradients_;
  c10::impl::LocalDispatchKeySet keys_;
};

}  // namespace accelerate::detail
