#include "parallel/tensor/redistribute.h"

#include <ATen/core/Tensor.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"

namespace accelerate::detail {

namespace {

std::int64_t dim_of(
    const accelerate::Shard& slice,
    const at::Tensor& tensor,
    std::int64_t num_mixed_dims,
    std::string_view what) {
  const std::int64_t dim = slice.dim < 0 ? slice.dim + tensor.dim() : slice.dim;
  if (dim >= 0 && dim < tensor.dim() - num_mixed_dims) return dim;
  throw ConfigError(format(
      "[parallel] {} has shape {}, which cannot be sliced along dimension {}{}",
      what,
      tensor.sizes(),
      slice.dim,
      num_mixed_dims == 0
          ? std::string()
          : format(
                ": the module mixes the last {}",
                num_mixed_dims == 1
                    ? std::string("dimension")
                    : format("{} dimensions", num_mixed_dims))));
}

}  // namespace

at::Tensor redistribute(
    const at::Tensor& tensor,
    const LayoutChange& change,
    std::int64_t num_mixed_dims,
    const Group& group,
    std::string_view what) {
  const accelerate::Shard* const from = slice_in(change.from);
  const accelerate::Shard* const to = slice_in(change.to);
  if (to != nullptr) (void)dim_of(*to, tensor, num_mixed_dims, what);
  if (change.from == change.to) return tensor;
  at::Tensor result = tensor;
  if (from != nullptr) {
    result = gather_from_region(
        result, dim_of(*from, tensor, 0, what), group, GatheredGradient::equal);
  }
  if (to != nullptr) {
    result = slice_to_region(
        result, dim_of(*to, tensor, num_mixed_dims, what), group);
  }
  return result;
}

}  // namespace accelerate::detail
