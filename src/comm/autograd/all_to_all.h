#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// How an all-to-all divides one dimension and joins along another.
struct AllToAllDims {
  std::int64_t split_dim = 0;
  /// Size along split_dim of what each rank gets; their sum is the tensor's.
  std::vector<std::int64_t> split_sizes;
  std::int64_t concat_dim = 0;
  /// Size along concat_dim of what each rank sends.
  std::vector<std::int64_t> concat_sizes;
};

/// Divides `tensor` along split_dim, sends each rank its piece, and returns the
/// pieces that the ranks sent to this one, joined along concat_dim in the order
/// of the ranks. Differentiable: the gradient takes the way back, so all ranks
/// run backward alike. Throws ConfigError if sizes do not fit, DistributedError
/// if a rank is gone. Messages of other ranks leave no trace in recorded
/// operators, so it must not be called while a segment is recorded.
at::Tensor all_to_all_autograd(
    const at::Tensor& tensor,
    const Group& group,
    const AllToAllDims& dims);

}  // namespace accelerate::detail
