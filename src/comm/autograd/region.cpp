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
  take_rows,
  give_back_rows,
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
    case RegionOp::take_rows:
      return RegionOp::give_back_rows;
    case RegionOp::give_back_rows:
      return RegionOp::take_rows;
  }
  throw InternalError("[comm] a collective of a region has no gradient");
}

/// What forward and backward of one call share.
struct RegionCall : torch::CustomClassHolder {
  RegionCall(
      RegionOp which,
      Group among,
      std::int64_t along = 0,
      std::vector<std::int64_t> slices = {},
      std::vector<std::vector<RowInterval>> intervals = {})
      : op(which),
        group(std::move(among)),
        dim(along),
        begins(std::move(slices)),
        wanted(std::move(intervals)) {}

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
  /// The rows of `keeper` that `taker` wants, counted from its first one.
  [[nodiscard]] std::vector<RowInterval> rows(int keeper, int taker) const {
    std::vector<RowInterval> rows;
    for (const auto& [first, last] : wanted[static_cast<std::size_t>(taker)]) {
      const std::int64_t from = std::max(first, begin(keeper));
      const std::int64_t to = std::min(last, begin(keeper + 1));
      if (from < to)
        rows.emplace_back(from - begin(keeper), to - begin(keeper));
    }
    return rows;
  }

  RegionOp op;
  Group group;
  std::int64_t dim;
  std::vector<std::int64_t> begins;
  /// The rows that each rank gets by take_rows.
  std::vector<std::vector<RowInterval>> wanted;
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

std::int64_t count_of(const std::vector<RowInterval>& rows) {
  std::int64_t count = 0;
  for (const auto& [first, last] : rows) count += last - first;
  return count;
}

std::vector<std::int64_t> with_rows(
    const at::Tensor& tensor,
    std::int64_t rows) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes.front() = rows;
  return sizes;
}

at::Tensor taken_rows(const at::Tensor& tensor, const RegionCall& call) {
  const int own = call.group.rank();
  std::vector<at::Tensor> sent;
  for (int taker = 0; taker < call.group.size(); ++taker) {
    std::vector<at::Tensor> pieces{tensor.narrow(0, 0, 0).flatten()};
    for (const auto& [first, last] : call.rows(own, taker))
      pieces.push_back(tensor.narrow(0, first, last - first).flatten());
    sent.push_back(at::cat(pieces));
  }
  std::vector<at::Tensor> received = call.group.all_to_all(sent);
  for (int keeper = 0; keeper < call.group.size(); ++keeper) {
    at::Tensor& rows = received[static_cast<std::size_t>(keeper)];
    rows = rows.view(with_rows(tensor, count_of(call.rows(keeper, own))));
  }
  return at::cat(received);
}

at::Tensor given_back_rows(const at::Tensor& tensor, const RegionCall& call) {
  const int own = call.group.rank();
  std::vector<at::Tensor> sent;
  std::int64_t at_row = 0;
  for (int keeper = 0; keeper < call.group.size(); ++keeper) {
    const std::int64_t count = count_of(call.rows(keeper, own));
    sent.push_back(tensor.narrow(0, at_row, count).flatten());
    at_row += count;
  }
  const std::vector<at::Tensor> received = call.group.all_to_all(sent);
  at::Tensor result =
      at::zeros(with_rows(tensor, call.size(own)), tensor.options());
  for (int taker = 0; taker < call.group.size(); ++taker) {
    const std::vector<RowInterval> places = call.rows(own, taker);
    const at::Tensor rows = received[static_cast<std::size_t>(taker)].view(
        with_rows(tensor, count_of(places)));
    std::int64_t from = 0;
    for (const auto& [first, last] : places) {
      result.narrow(0, first, last - first)
          .copy_(rows.narrow(0, from, last - first));
      from += last - first;
    }
  }
  return result;
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
    case RegionOp::take_rows:
      return taken_rows(tensor.detach(), call);
    case RegionOp::give_back_rows:
      return given_back_rows(tensor.detach(), call);
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
        gradient_of(call->op),
        call->group,
        call->dim,
        call->begins,
        call->wanted);
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

at::Tensor exchange_rows(
    const at::Tensor& tensor,
    const Group& group,
    std::vector<std::int64_t> begins,
    std::vector<std::vector<RowInterval>> wanted) {
  return record_collective(
      tensor,
      c10::make_intrusive<RegionCall>(
          RegionOp::take_rows, group, 0, std::move(begins), std::move(wanted)));
}

std::vector<std::int64_t> slice_begins(std::int64_t size, int num_ranks) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank <= num_ranks; ++rank)
    begins.push_back(size * rank / num_ranks);
  return begins;
}

}  // namespace accelerate::detail
