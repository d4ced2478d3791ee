#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/planning.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// Makes calls that compute the forward and backward of transformer layers and
/// of their parts. `shape` must outlive the object, and have all sizes set
/// (complete_shape).
class LayerParts {
 public:
  LayerParts(
      const TransformerShape& shape,
      std::int64_t num_samples,
      std::int64_t length,
      const at::TensorOptions& options)
      : shape_(shape),
        num_samples_(num_samples),
        length_(length),
        options_(options) {}

  [[nodiscard]] std::int64_t tokens() const { return num_samples_ * length_; }

  [[nodiscard]] std::function<void()> product() const;
  [[nodiscard]] double product_flops() const;
  [[nodiscard]] std::function<void()> attention() const;
  /// Everything but products and attention.
  [[nodiscard]] std::function<void()> rest() const;
  /// A loss on logits of `num_classes` classes.
  [[nodiscard]] std::function<void()> loss(std::int64_t num_classes) const;
  /// A router and its experts, all on this rank.
  [[nodiscard]] std::function<void()> experts() const;
  /// All parts of a layer, one after another.
  [[nodiscard]] std::function<void()> whole() const;
  /// Several layers, each with its own weights; backwards begin after all
  /// forwards, as in a model. `sums`: ranks that all-reduce the outputs of two
  /// parts of each layer and the gradients of their inputs, like ranks along
  /// `tensor`.
  [[nodiscard]] std::function<void()> stack(
      int num_layers,
      const std::optional<Group>& sums = std::nullopt) const;
  /// All-reduces per layer of a stack, forward and backward together.
  static constexpr int kSums = 4;
  /// A layer's parameters with gradients.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;

 private:
  [[nodiscard]] at::Tensor leaf(const std::vector<std::int64_t>& sizes) const;

  const TransformerShape& shape_;
  std::int64_t num_samples_;
  std::int64_t length_;
  at::TensorOptions options_;
};

}  // namespace accelerate::detail
