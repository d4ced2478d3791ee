#include "precision/fp8/float8_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::array<std::string_view, Float8Statistics::kNumRoles> kRoleNames{
    "input",
    "weight",
    "grad_output"};
constexpr std::array<std::string_view, Float8Statistics::kNumProducts>
    kProductNames{"forward", "grad_input", "grad_weight"};

// Half of a format's last step relative to its largest value: a value that
// exceeds the largest by less is rounded to it.
double rounding_of_largest(Float8Format type) {
  const bool has_three_bits =
      type == Float8Format::e4m3fn || type == Float8Format::e4m3fnuz;
  const double largest = largest_value(type);
  return std::ldexp(0.5, std::ilogb(largest) - (has_three_bits ? 3 : 2)) /
      largest;
}

at::Tensor number_of(const at::Tensor& mask) { return mask.sum(at::kDouble); }

// Copies numbers with one wait for the device instead of one each.
std::vector<double> on_host(const std::vector<at::Tensor>& numbers) {
  const at::Tensor stacked = at::stack(numbers).to(at::kDouble).cpu();
  const auto* const values = stacked.const_data_ptr<double>();
  return {values, values + stacked.numel()};
}

}  // namespace

std::array<double, Float8Statistics::kNumExtremes>
Float8Statistics::no_extremes() {
  std::array<double, kNumExtremes> extremes{};
  extremes.fill(-std::numeric_limits<double>::infinity());
  return extremes;
}

void Float8Statistics::add_cast(
    std::int64_t role,
    const at::Tensor& matrix,
    const Float8Matrix& cast) {
  if (matrix.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const Float8Format type = float8_format(cast.values.scalar_type());
  const at::Tensor sizes = matrix.detach().to(at::kFloat).abs();
  const at::Tensor codes = cast.values.to(at::kFloat).abs();
  const at::Tensor is_set = sizes.gt(0);
  const at::Tensor is_cut_off =
      codes.ge(largest_value(type))
          .logical_and_(sizes.gt(
              cast.dequantize().abs().mul_(1 + rounding_of_largest(type))));
  const at::Tensor scale = cast.scale.to(at::kDouble);
  const std::vector<double> found = on_host(
      {number_of(is_set),
       number_of(is_set.logical_and(codes.eq(0))),
       number_of(is_cut_off),
       scale.max(),
       scale.min().neg()});
  const std::lock_guard lock(mutex_);
  const auto first_sum = static_cast<std::size_t>(3 * role);
  for (std::size_t i = 0; i < 3; ++i) sums_[first_sum + i] += found[i];
  for (std::size_t i = 0; i < 2; ++i) {
    double& extreme = extremes_[static_cast<std::size_t>(2 * role) + i];
    extreme = std::max(extreme, found[3 + i]);
  }
}

void Float8Statistics::add_product(
    std::int64_t product,
    const at::Tensor& result,
    const at::Tensor& a,
    const at::Tensor& b) {
  if (result.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor expected =
      at::mm(a.detach().to(at::kBFloat16), b.detach().to(at::kBFloat16))
          .to(at::kDouble);
  const std::vector<double> found = on_host(
      {(result.detach().to(at::kDouble) - expected).square().sum(),
       expected.square().sum()});
  const std::lock_guard lock(mutex_);
  const auto first = static_cast<std::size_t>(3 * kNumRoles + 2 * product);
  for (std::size_t i = 0; i < 2; ++i) sums_[first + i] += found[i];
}

at::Tensor Float8Statistics::take() {
  at::Tensor numbers = at::empty({kNumSums + kNumExtremes}, at::kDouble);
  auto* const values = numbers.mutable_data_ptr<double>();
  const std::lock_guard lock(mutex_);
  std::ranges::copy(std::exchange(sums_, {}), values);
  std::ranges::copy(std::exchange(extremes_, no_extremes()), values + kNumSums);
  return numbers;
}

std::vector<std::pair<std::string, double>> Float8Statistics::figures_of(
    const std::string& layer,
    const at::Tensor& numbers) {
  std::vector<std::pair<std::string, double>> figures;
  const auto add =
      [&](std::string_view of, std::string_view what, double value) {
        figures.emplace_back(format("fp8/{}/{}/{}", layer, of, what), value);
      };
  const at::Tensor on_host = numbers.contiguous();
  const auto* sums = on_host.const_data_ptr<double>();
  const auto* extremes = sums + kNumSums;
  for (const std::string_view role : kRoleNames) {
    const double num_set = std::max(sums[0], 1.0);
    const double largest = extremes[0], smallest = -extremes[1];
    if (largest != -std::numeric_limits<double>::infinity()) {
      add(role, "underflow_rate", sums[1] / num_set);
      add(role, "overflow_rate", sums[2] / num_set);
      add(role, "scale", largest);
      if (smallest != largest) add(role, "smallest_scale", smallest);
    }
    sums += 3;
    extremes += 2;
  }
  for (const std::string_view product : kProductNames) {
    if (sums[1] > 0)
      add(product, "relative_error", std::sqrt(sums[0] / sums[1]));
    sums += 2;
  }
  return figures;
}

}  // namespace accelerate::detail
