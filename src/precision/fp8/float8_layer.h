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
/// operands; if either has no cast, the product is computed in the precision of
/// the input.
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
  /// Per-tensor scales from earlier steps, which replace those of the casts
  /// above.
  std::optional<DelayedScaleOptions> delayed = std::nullopt;
  /// Operands are padded with zeros if the device requires other sizes.
  bool pads = true;
  /// Gradients are rounded stochastically.
  bool rounds_gradients_randomly = false;

  /// Whether casts for products that sum over different dimensions are the
  /// same, so that one cast can serve both.
  [[nodiscard]] bool is_same_cast(
      const std::optional<DynamicCast>& a,
      const std::optional<DynamicCast>& b) const;
};

/// One of a layer's tensors with delayed scaling.
class DelayedTensor {
 public:
  DelayedTensor(Float8Format type, const DelayedScaleOptions& options)
      : scale_(type, options) {}

  /// The scale of this step, a scalar on `device`.
  [[nodiscard]] at::Tensor scale_on(c10::Device device);
  /// Notes an amax, a scalar, for the next step. Called on forward and backward
  /// threads; does not wait for a device.
  void note(const at::Tensor& amax);
  /// Takes the largest amax noted since the last call, among those in host
  /// memory (NaN counts as infinity) and among those on a device (undefined if
  /// there were none).
  std::pair<float, at::Tensor> take_amax();
  /// Ends a step, given the amax of all ranks.
  void update(float amax);
  /// From now on, the scale is the argument of the last call, a scalar on a
  /// device; update() only affects scale().
  void use(at::Tensor scale_on_device);
  void restore(
      float scale,
      const std::vector<float>& history,
      std::int64_t num_updates);
  [[nodiscard]] const DelayedScale& scale() const { return scale_; }

 private:
  std::mutex mutex_;
  DelayedScale scale_;
  at::Tensor on_device_;
  bool is_given_ = false;
  float pending_ = 0;
  at::Tensor pending_on_device_;
};

/// The data that one layer's products need, and leave for later steps.
struct Float8Layer : torch::CustomClassHolder {
  enum Role { input, weight, grad_output };
  static constexpr std::size_t kNumRoles = 3;
  enum Product { forward, grad_input, grad_weight };
  static constexpr std::size_t kNumProducts = 3;

  Float8Layer(std::string name, const Float8Rules& rules);

  /// Finds out by trying how `device` multiplies the operands of each product.
  void probe(c10::Device device);

  /// The purpose of a cast of an operand.
  struct OperandUse {
    /// Whether has_positions() was true in the forward.
    bool of_positions = false;
    /// Whether another product needs the transposed values of the same cast.
    bool also_transposed = false;
  };
  /// Casts an operand whose product sums over `dim`. The amax is undefined
  /// unless scales are delayed.
  [[nodiscard]] MeasuredMatrix cast(
      const at::Tensor& matrix,
      const DynamicCast& how,
      std::int64_t dim,
      Role role,
      const OperandUse& use) const;
  /// Casts the layer's weight, whose casts are kept until it changes.
  [[nodiscard]] MeasuredMatrix cast_weight(
      const at::Tensor& matrix,
      const DynamicCast& how,
      std::int64_t dim,
      bool also_transposed = false);
  /// Drops kept casts: the weight may have changed.
  void forget_weight();

  /// Notes the amax that cast() measured; a no-op if undefined.
  void note(Role role, const at::Tensor& amax) const;

  /// Returns a [m, k] times b [n, k] transposed. If the device fails, emulates
  /// the product from then on, with a warning.
  [[nodiscard]] at::Tensor multiply(
      Product product,
      const Float8Matrix& a,
      const Float8Matrix& b,
      at::ScalarType dtype);

  std::string name;
  Float8Rules rules;
  /// One entry per product.
  std::array<std::atomic<Float8Multiplier::Way>, kNumProducts> ways;
  /// One entry per role; empty without delayed scaling.
  std::vector<std::unique_ptr<DelayedTensor>> delayed;
  /// False if the weight's memory comes and goes.
  bool keeps_weight = false;
  std::function<void(const std::string&)> warn = nullptr;
  /// How ranks divide the matrix of each role; empty if each rank has all of
  /// it.
  std::array<std::vector<MatrixDivision>, kNumRoles> divisions;
  /// Returns whether this thread computes with only some positions of a
  /// sequence, so that other ranks have other rows of inputs and of output
  /// gradients. Null: never.
  std::function<bool()> has_positions = nullptr;
  /// Maximizes amaxes, in place, over all ranks that have positions.
  std::function<void(const at::Tensor& amax)> agree_on_positions = nullptr;
  /// The weight's scale while it holds values rounded to float8; undefined
  /// while it holds its own values. Null: it always holds its own.
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

/// Takes the amaxes that all layers have noted: [layers, roles]; NaN counts as
/// infinity.
at::Tensor take_amaxes(const Float8Layers& layers, c10::Device device);

}  // namespace accelerate::detail
