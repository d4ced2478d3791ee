#include "comm/autograd/region.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class RegionOp {
  copy,
  reduce,
  gather_partial,
  gather_equal,
  slice,
  reduce_scatter,
};

// The collective that an operation's gradient takes.
RegionOp gradient_of(RegionOp op) {
  switch (op) {
    case RegionOp::copy:
      return RegionOp::reduce;
    case RegionOp::reduce:
      return RegionOp::copy;
    case RegionOp::gather_partial:
      return RegionOp::reduce_scatter;
    case RegionOp::reduce_scatter:
      return RegionOp::gather_partial;
    case RegionOp::gather_equal:
      return RegionOp::slice;
    case RegionOp::slice:
      return RegionOp::gather_equal;
  }
  throw InternalError("[comm] a collective of a region has no gradient");
}

/// What forward and backward of one call share.
struct RegionCall : torch::CustomClassHolder {
  RegionCall(
      RegionOp which,
      Group among,
      std::int64_t along = 0,
      std::vector<std::int64_t> slices = {})
      : op(which),
        group(std::move(among)),
        dim(along),
        begins(std::move(slices)) {}

  [[nodiscard]] std::int64_t begin(int rank) const {
    return begins[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::int64_t size(int rank) const {
    return begin(rank + 1) - begin(rank);
  }
  [[nodiscard]] std::int64_t longest() const {
    std::int64_t most = 0;
    for (int rank = 0; rank < group.size(); ++rank)
      most = std::max(most, size(rank));
    return most;
  }
  [[nodiscard]] at::Tensor slice(const at::Tensor& tensor, int rank) const {
    return tensor.narrow(dim, begin(rank), size(rank));
  }

  RegionOp op;
  Group group;
  std::int64_t dim;
  std::vector<std::int64_t> begins;
};

// Slices travel with as many indices as the longest has.
at::Tensor
padded_slice(const at::Tensor& slice, std::int64_t dim, std::int64_t size) {
  if (slice.size(dim) == size) return slice.contiguous();
  std::vector<std::int64_t> sizes = slice.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size;
  const at::Tensor padded = at::zeros(sizes, slice.options());
  padded.narrow(dim, 0, slice.size(dim)).copy_(slice);
  return padded;
}

at::Tensor gathered(const at::Tensor& tensor, const RegionCall& call) {
  std::vector<at::Tensor> slices = call.group.all_gather(
      padded_slice(tensor.detach(), call.dim, call.longest()));
  for (int rank = 0; rank < call.group.size(); ++rank) {
    at::Tensor& slice = slices[static_cast<std::size_t>(rank)];
    slice = slice.narrow(call.dim, 0, call.size(rank));
  }
  return at::cat(slices, call.dim);
}

at::Tensor reduce_scattered(const at::Tensor& tensor, const RegionCall& call) {
  std::vector<at::Tensor> slices;
  for (int rank = 0; rank < call.group.size(); ++rank) {
    slices.push_back(padded_slice(
        call.slice(tensor.detach(), rank), call.dim, call.longest()));
  }
  return call.group.reduce_scatter(at::stack(slices))
      .squeeze(0)
      .narrow(call.dim, 0, call.size(call.group.rank()))
      .clone();
}

at::Tensor result_of(const at::Tensor& tensor, const RegionCall& call) {
  switch (call.op) {
    case RegionOp::copy:
      return tensor.view_as(tensor);
    case RegionOp::reduce: {
      at::Tensor sum = tensor.detach().clone(at::MemoryFormat::Contiguous);
      call.group.all_reduce(sum);
      return sum;
    }
    case RegionOp::gather_partial:
    case RegionOp::gather_equal:
      return gathered(tensor, call);
    case RegionOp::slice:
      // A copy, since in-place operators refuse views made in a Function.
      return call.slice(tensor, call.group.rank())
          .clone(at::MemoryFormat::Contiguous);
    case RegionOp::reduce_scatter:
      return reduce_scattered(tensor, call);
  }
  throw InternalError("[comm] a region has no such collective");
}

at::Tensor record_collective(
    const at::Tensor& tensor,
    const c10::intrusive_ptr<RegionCall>& call);

struct RegionFunction : torch::autograd::Function<RegionFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& tensor,
      const c10::intrusive_ptr<RegionCall>& call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return result_of(tensor, *call);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto call = c10::static_intrusive_pointer_cast<RegionCall>(
        context->saved_data["call"].toCapsule());
    const auto of_gradient = c10::make_intrusive<RegionCall>(
        gradient_of(call->op), call->group, call->dim, call->begins);
    return {record_collective(gradients.front(), of_gradient), at::Tensor()};
  }
};

at::Tensor record_collective(
    const at::Tensor& tensor,
    const c10::intrusive_ptr<RegionCall>& call) {
  if (call->group.size() == 1) return tensor;
  if (at::GradMode::is_enabled() && tensor.requires_grad())
    return RegionFunction::apply(tensor, call);
  return call->op == RegionOp::copy ? tensor : result_of(tensor, *call);
}

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

at::Tensor copy_to_region(const at::Tensor& tensor, const Group& group) {
  return record_collective(
      tensor, c10::make_intrusive<RegionCall>(RegionOp::copy, group));
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
  dim = at::maybe_wrap_dim(dim, tensor.dim());
  if (group.size() == 1) return tensor;
  const std::int64_t own = tensor.size(dim);
  const std::vector<std::int64_t> all = sizes.empty()
      ? sizes_of_all(own, group)
      : std::vector<std::int64_t>(sizes.begin(), sizes.end());
  const auto rank = static_cast<std::size_t>(group.rank());
  if (all.size() != static_cast<std::size_t>(group.size()) ||
      all[rank] != own) {
    throw ConfigError(format(
        "[comm] a tensor of shape {} was to be gathered along dimension {}, "
        "where this rank should have {} indices",
        tensor.sizes(),
        dim,
        rank < all.size() ? all[rank] : 0));
  }
  const RegionOp op = gradient == GatheredGradient::partial
      ? RegionOp::gather_partial
      : RegionOp::gather_equal;
  return record_collective(
      tensor, c10::make_intrusive<RegionCall>(op, group, dim, begins_of(all)));
}

at::Tensor slice_to_region(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group) {
  dim = at::maybe_wrap_dim(dim, tensor.dim());
  return record_collective(
      tensor,
      c10::make_intrusive<RegionCall>(
          RegionOp::slice,
          group,
          dim,
          slice_begins(tensor.size(dim), group.size())));
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
