#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "precision/fp8/float8_matrix.h"
#include "precision/fp8/float8_multiply.h"
#include "precision/fp8/float8_statistics.h"

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
  /// Gradients are rounded up or down at random.
  bool rounds_gradients_randomly = false;

  /// Whether casts for products that sum over different dimensions are one, so
  /// that it can serve twice.
  [[nodiscard]] bool is_same_cast(
      const std::optional<DynamicCast>& a,
      const std::optional<DynamicCast>& b) const;
};

/// One of a layer's tensors with delayed scaling.
class DelayedTensor {
 public:
  DelayedTensor(Float8Format type, const DelayedScaleOptions& options)
      : scale_(type, options) {}

  /// The scale of this step, a number on `device`.
  [[nodiscard]] at::Tensor scale_on(c10::Device device);
  /// Notes a largest value, a number, for the next step. Called by the threads
  /// of forward and backward; does not wait for a device.
  void note(const at::Tensor& amax);
  /// The largest value noted since the last call: of those that were in host
  /// memory, where NaN counts as infinity, and of those that are on a device,
  /// undefined if there were none.
  std::pair<float, at::Tensor> take_amax();
  /// Ends a step with the largest value of all ranks.
  void update(float amax);
  void restore(
      float scale,
      const std::vector<float>& history,
      std::int64_t num_updates);
  [[nodiscard]] const DelayedScale& scale() const { return scale_; }

 private:
  std::mutex mutex_;
  DelayedScale scale_;
  at::Tensor on_device_;
  float pending_ = 0;
  at::Tensor pending_on_device_;
};

/// What the products of one layer need, and what they leave for later steps.
struct Float8Layer : torch::CustomClassHolder {
  enum Role { input, weight, grad_output };
  static constexpr std::size_t kNumRoles = 3;
  enum Product { forward, grad_input, grad_weight };
  static constexpr std::size_t kNumProducts = 3;

  Float8Layer(std::string name, const Float8Rules& rules);

  /// Tries how `device` multiplies the operands of each product.
  void probe(c10::Device device);

  /// Casts an operand; the product sums over `dim`. The amax is undefined
  /// unless scales are delayed. `of_positions`: has_positions() was true in the
  /// forward.
  [[nodiscard]] MeasuredMatrix cast(
      const at::Tensor& matrix,
      const DynamicCast& how,
      std::int64_t dim,
      Role role,
      bool of_positions = false) const;
  /// The same for the layer's weight, whose casts are kept until it changes.
  [[nodiscard]] MeasuredMatrix cast_weight(
      const at::Tensor& matrix,
      const DynamicCast& how,
      std::int64_t dim);
  /// Drops kept casts: the weight may have changed.
  void forget_weight();

  /// Notes what cast() measured; nothing if that is undefined.
  void note(Role role, const at::Tensor& amax) const;

  /// a [m, k] times b [n, k] transposed. If the device fails, the product is
  /// emulated from then on, with a warning.
  [[nodiscard]] at::Tensor multiply(
      Product product,
      const Float8Matrix& a,
      const Float8Matrix& b,
      at::ScalarType dtype);

  std::string name;
  Float8Rules rules;
  /// By product.
  std::array<std::atomic<Float8Multiplier::Way>, kNumProducts> ways;
  /// By role; empty without delayed scaling.
  std::vector<std::unique_ptr<DelayedTensor>> delayed;
  /// False where the weight's memory comes and goes.
  bool keeps_weight = false;
  std::function<void(const std::string&)> warn = nullptr;
  /// By role: how ranks divide the matrix; empty where each has all of it.
  std::array<std::vector<MatrixDivision>, kNumRoles> divisions;
  /// Whether this thread computes with some positions of a sequence, so that
  /// other ranks have other rows of inputs and of gradients of outputs. Null:
  /// never.
  std::function<bool()> has_positions = nullptr;
  /// Makes largest values those of all ranks that have positions, in place.
  std::function<void(const at::Tensor& amax)> agree_on_positions = nullptr;
  /// The scale of the weight while it has the values that float8 left of it;
  /// undefined while it has its own. Null: it always has its own.
  std::shared_ptr<const at::Tensor> gathered_scale = nullptr;
  /// Whether casts and products of forwards with a backward are measured.
  std::atomic<bool> is_measured = false;
  Float8Statistics statistics;

 private:
  struct KeptWeight {
    DynamicCast how;
    std::int64_t dim = 0;
    const void* data = nullptr;
    std::uint32_t version = 0;
    std::vector<std::int64_t> sizes;
    MeasuredMatrix cast;
  };

  std::mutex mutex_;
  std::vector<KeptWeight> kept_weights_;
};

using Float8Layers = std::vector<c10::intrusive_ptr<Float8Layer>>;

/// Takes the largest values that all layers have noted: [layers, roles]; NaN
/// counts as infinity.
at::Tensor take_amaxes(const Float8Layers& layers, c10::Device device);

}  // namespace accelerate::detail
