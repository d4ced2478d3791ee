#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

struct AverageOptions {
  /// Dtype of the sums, complex for complex gradients; unset: each gradient's
  /// own.
  std::optional<at::ScalarType> sum_in = std::nullopt;
  /// Narrower dtype in which gradients are sent and summed; they are divided
  /// before being narrowed, so that sums do not overflow. Replaces `sum_in`.
  std::optional<at::ScalarType> send_in = std::nullopt;
  /// The divisor of the sums; unset: the number of ranks.
  std::optional<double> divisor = std::nullopt;
  /// Gradients are sent in messages of about this size.
  std::int64_t message_bytes = 25 << 20;
};

/// Gives all ranks of `group` the mean of their gradients of each parameter.
/// Ranks without a gradient contribute zeros; if no rank has one, none is set.
/// Collective, with parameters of the same number, shapes and dtypes on all
/// ranks. Uses few, large messages.
void average_gradients(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    const AverageOptions& options = {});

}  // namespace accelerate::detail
