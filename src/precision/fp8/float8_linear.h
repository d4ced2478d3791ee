#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

/// How a linear layer's three products are computed. Each product has two
/// operands; where one of them has no cast, the product is computed in the
/// precision of the input.
struct Float8Rules {
  /// output = input * weight^T
  std::optional<DynamicCast> input = DynamicCast{};
  std::optional<DynamicCast> weight = DynamicCast{};
  /// gradient of the input = gradient of the output * weight
  std::optional<DynamicCast> grad_output = DynamicCast{at::kFloat8_e5m2};
  std::optional<DynamicCast> weight_for_grad_input = DynamicCast{};
  /// gradient of the weight = gradient of the output^T * input
  std::optional<DynamicCast> grad_output_for_grad_weight =
      DynamicCast{at::kFloat8_e5m2};
  std::optional<DynamicCast> input_for_grad_weight = DynamicCast{};
  /// Scales per tensor that follow from earlier steps, in place of those of the
  /// casts above.
  std::optional<DelayedScaleOptions> delayed = std::nullopt;
  /// Operands get zeros where the device wants other sizes.
  bool pads = true;
  /// Gradients are rounded up or down at random; for scales per tensor.
  bool rounds_gradients_randomly = false;
};

/// The ways to multiply float8 matrices.
enum class Float8Multiplier {
  emulation,       ///< dequantised, in fp32
  device,          ///< at::_scaled_mm, for sizes that are multiples of 16
  padding_device,  ///< the same, with zeros up to such sizes
};

/// How `device` multiplies float8 matrices of these rules: by itself if a small
/// product, which is tried, has the right result. By emulation on CPUs, where
/// LibTorch gains nothing by its own products.
Float8Multiplier float8_multiplier(
    c10::Device device,
    const Float8Rules& rules);

/// One of a layer's tensors with delayed scaling.
class DelayedTensor {
 public:
  DelayedTensor(Float8Format type, const DelayedScaleOptions& options)
      : scale_(type, options) {}

  /// The scale of this step; notes `amax` for the next. Called by the threads
  /// of forward and backward.
  float use(float amax);
  /// The largest value noted since the last call; NaN counts as infinity.
  float take_amax();
  /// Ends a step with the largest value of all ranks.
  void update(float amax);
  [[nodiscard]] const DelayedScale& scale() const { return scale_; }
  [[nodiscard]] DelayedScale& scale() { return scale_; }

 private:
  std::mutex mutex_;
  DelayedScale scale_;
  float pending_ = 0;
};

/// What the products of one layer need, and what they leave for later steps.
struct Float8Layer : torch::CustomClassHolder {
  enum Role { input, weight, grad_output };
  static constexpr std::size_t kNumRoles = 3;

  Float8Layer(std::string name, const Float8Rules& rules);

  std::string name;
  Float8Rules rules;
  Float8Multiplier multiplier = Float8Multiplier::emulation;
  /// By role; empty without delayed scaling.
  std::vector<std::unique_ptr<DelayedTensor>> delayed;
};

/// input [..., k] times `transposed_weight` [k, n], in the dtype of the input,
/// with gradients; the layer's rules say how. Nothing is added.
at::Tensor float8_product(
    const at::Tensor& input,
    const at::Tensor& transposed_weight,
    const c10::intrusive_ptr<Float8Layer>& layer);

/// a [m, k] times b [n, k] transposed, in fp32 and then `dtype`.
at::Tensor multiply(
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype,
    Float8Multiplier multiplier);

}  // namespace accelerate::detail
