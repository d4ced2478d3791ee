#include "comm/autograd/region.h"

#include <cstddef>

#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/region_call.h"

namespace accelerate::detail {

namespace {

std::vector<std::int64_t> begins_of(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> begins{0};
  for (const std::int64_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

std::vector<std::int64_t> sizes_of_all(std::int64_t size, const Group& group) {
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& each :
       group.all_gather(at::full({1}, size, at::kLong))) {
    sizes.push_back(each.item<std::int64_t>());
  }
  return sizes;
}

}  // namespace

c10::intrusive_ptr<RegionCall> copy_call(const Group& group) {
  return c10::make_intrusive<RegionCall>(RegionOp::copy, group);
}

c10::intrusive_ptr<RegionCall> gather_call(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group,
    GatheredGradient gradient,
    std::span<const std::int64_t> sizes) {
  dim = at::maybe_wrap_dim(dim, tensor.dim());
  const std::int64_t own = tensor.size(dim);
  const std::vector<std::int64_t> all = sizes.empty()
      ? sizes_of_all(own, group)
      : std::vector<std::int64_t>(sizes.begin(), sizes.end());
  const auto rank = static_cast<std::size_t>(group.rank());
  if (all.size() != static_cast<std::size_t>(group.size()) ||
      all[rank] != own) {
    throw ConfigError(format(
        "[comm] a tensor of shape {} cannot be gathered along dimension {}, "
        "where this rank must have {} indices",
        tensor.sizes(),
        dim,
        rank < all.size() ? all[rank] : 0));
  }
  const RegionOp op = gradient == GatheredGradient::partial
      ? RegionOp::gather_partial
      : RegionOp::gather_equal;
  return c10::make_intrusive<RegionCall>(op, group, dim, begins_of(all));
}

c10::intrusive_ptr<RegionCall>
slice_call(const at::Tensor& tensor, std::int64_t dim, const Group& group) {
  dim = at::maybe_wrap_dim(dim, tensor.dim());
  return c10::make_intrusive<RegionCall>(
      RegionOp::slice,
      group,
      dim,
      slice_begins(tensor.size(dim), group.size()));
}

at::Tensor copy_to_region(const at::Tensor& tensor, const Group& group) {
  return record_collective(tensor, copy_call(group));
}

at::Tensor reduce_from_region(const at::Tensor& tensor, const Group& group) {
  return record_collective(
      tensor, c10::make_intrusive<RegionCall>(RegionOp::reduce, group));
}

at::Tensor gather_from_region(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group,
    GatheredGradient gradient,
    std::span<const std::int64_t> sizes) {
  if (group.size() == 1) return tensor;
  return record_collective(
      tensor, gather_call(tensor, dim, group, gradient, sizes));
}

at::Tensor slice_to_region(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group) {
  return record_collective(tensor, slice_call(tensor, dim, group));
}

at::Tensor reduce_scatter_to_region(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group) {
  dim = at::maybe_wrap_dim(dim, tensor.dim());
  return record_collective(
      tensor,
      c10::make_intrusive<RegionCall>(
          RegionOp::reduce_scatter,
          group,
          dim,
          slice_begins(tensor.size(dim), group.size())));
}

std::vector<std::int64_t> slice_begins(std::int64_t size, int num_ranks) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank <= num_ranks; ++rank)
    begins.push_back(size * rank / num_ranks);
  return begins;
}

}  // namespace accelerate::detail
