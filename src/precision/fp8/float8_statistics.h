#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

/// What the casts of one layer lost in a step, and how far its products are
/// from those of bf16, as numbers that ranks can combine. Thread-safe. Waits for
/// the device.
class Float8Statistics {
 public:
  static constexpr std::int64_t kNumRoles = 3;
  static constexpr std::int64_t kNumProducts = 3;
  /// Ranks add these numbers up.
  static constexpr std::int64_t kNumSums = 3 * kNumRoles + 2 * kNumProducts;
  /// Ranks take the largest of these: the largest scales and the negatives of the
  /// smallest; -infinity without a cast.
  static constexpr std::int64_t kNumExtremes = 2 * kNumRoles;

  /// `role`: a Float8Layer::Role. A value underflows if it is not 0 and becomes
  /// 0; it overflows if it is cut off, that is, if rounding to nearest would
  /// exceed the format's largest value.
  void add_cast(
      std::int64_t role,
      const at::Tensor& matrix,
      const Float8Matrix& cast);
  /// `product`: a Float8Layer::Product; `a` times `b` in bf16 is what `result` is
  /// compared with.
  void add_product(
      std::int64_t product,
      const at::Tensor& result,
      const at::Tensor& a,
      const at::Tensor& b);

  /// Takes what was added since the last call: kNumSums and kNumExtremes
  /// numbers (fp64) in host memory.
  at::Tensor take();

  /// Names ("fp8/fc1/input/underflow_rate") and values of what the numbers of a
  /// step say; nothing of a role or product without values. Rates are shares of
  /// the values that are not 0; errors are norms of differences over norms in
  /// bf16.
  [[nodiscard]] static std::vector<std::pair<std::string, double>> figures_of(
      const std::string& layer,
      const at::Tensor& numbers);

 private:
  std::mutex mutex_;
  std::array<double, kNumSums> sums_{};
  std::array<double, kNumExtremes> extremes_ = no_extremes();

  static std::array<double, kNumExtremes> no_extremes();
};

}  // namespace accelerate::detail
