#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/planning.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// Layers of a transformer, and parts of one, as calls that compute them forward
/// and backward. `shape` must outlive the object; all its sizes are set
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
  /// What is neither a product nor attention.
  [[nodiscard]] std::function<void()> rest() const;
  /// The loss of logits of so many classes.
  [[nodiscard]] std::function<void()> loss(std::int64_t num_classes) const;
  /// A router and its experts, all on this rank.
  [[nodiscard]] std::function<void()> experts() const;
  /// All parts of a layer, one after the other.
  [[nodiscard]] std::function<void()> whole() const;
  /// A number of layers, each with weights of its own; the backwards begin when
  /// all forwards have ended, as in a model. `sums`: ranks that sum what two parts
  /// of each layer return, and the gradients of what these are given, as ranks
  /// along `tensor` do.
  [[nodiscard]] std::function<void()> stack(
      int num_layers,
      const std::optional<Group>& sums = std::nullopt) const;
  /// Sums of a layer of a stack, forward and backward.
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
