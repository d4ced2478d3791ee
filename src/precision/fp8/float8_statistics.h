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

/// Measures what one layer's casts lose in a step, and how far its products are
/// from bf16 products, as numbers that ranks can combine. Thread-safe. Waits
/// for the device.
class Float8Statistics {
 public:
  static constexpr std::int64_t kNumRoles = 3;
  static constexpr std::int64_t kNumProducts = 3;
  /// Ranks add these numbers up.
  static constexpr std::int64_t kNumSums = 3 * kNumRoles + 2 * kNumProducts;
  /// Ranks take the maximum of these: the largest scales, and the negated
  /// smallest ones; -infinity without a cast.
  static constexpr std::int64_t kNumExtremes = 2 * kNumRoles;

  /// `role`: a Float8Layer::Role. A nonzero value underflows if it becomes 0; a
  /// value overflows if it saturates, that is, if rounding to nearest would
  /// exceed the format's largest value.
  void add_cast(
      std::int64_t role,
      const at::Tensor& matrix,
      const Float8Matrix& cast);
  /// `product`: a Float8Layer::Product; compares `result` with `a` times `b` in
  /// bf16.
  void add_product(
      std::int64_t product,
      const at::Tensor& result,
      const at::Tensor& a,
      const at::Tensor& b);

  /// Takes the data added since the last call: kNumSums and kNumExtremes
  /// numbers (fp64) in host memory.
  at::Tensor take();

  /// Returns the figures of a step's numbers by name, such as
  /// "fp8/fc1/input/underflow_rate"; none for a role or product without values.
  /// Rates are shares of nonzero values; errors are norms of differences over
  /// bf16 norms.
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
