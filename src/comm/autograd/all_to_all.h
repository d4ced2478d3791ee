#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// How an all-to-all splits one dimension and concatenates along another.
struct AllToAllDims {
  std::int64_t split_dim = 0;
  /// Size along split_dim of each rank's piece; they sum to the tensor's size.
  std::vector<std::int64_t> split_sizes;
  std::int64_t concat_dim = 0;
  /// Size along concat_dim of each rank's tensor.
  std::vector<std::int64_t> concat_sizes;
};

/// Divides `tensor` along split_dim, sends each rank its piece, and returns the
/// pieces that the ranks sent to this one, joined along concat_dim in the order
/// of the ranks. Differentiable: the gradient is sent back the same way, so all
/// ranks must run backward alike. Throws ConfigError if sizes do not fit,
/// DistributedError if a rank is gone. Recorded operators cannot replay other
/// ranks' messages, so it must not be called while a segment is recorded.
at::Tensor all_to_all_autograd(
    const at::Tensor& tensor,
    const Group& group,
    const AllToAllDims& dims);

}  // namespace accelerate::detail
