#include "comm/autograd/region_call.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>

namespace accelerate::detail {

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

namespace {

// Slices are padded to the longest one's number of indices when sent.
at::Tensor
padded_slice(const at::Tensor& slice, std::int64_t dim, std::int64_t size) {
  if (slice.size(dim) == size) return slice.contiguous();
  std::vector<std::int64_t> sizes = slice.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size;
  const at::Tensor padded = at::zeros(sizes, slice.options());
  padded.narrow(dim, 0, slice.size(dim)).copy_(slice);
  return padded;
}

at::Tensor stacked_slices(const at::Tensor& tensor, const RegionCall& call) {
  std::vector<at::Tensor> slices;
  for (int rank = 0; rank < call.group.size(); ++rank) {
    slices.push_back(padded_slice(
        call.slice(tensor.detach(), rank), call.dim, call.longest()));
  }
  return at::stack(slices);
}

// Gathers the slices of all ranks, to be joined once they have arrived.
PendingResult begin_gather(const at::Tensor& tensor, const RegionCall& call) {
  const at::Tensor own =
      padded_slice(tensor.detach(), call.dim, call.longest());
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), call.group.size());
  const at::Tensor all = at::empty(sizes, own.options());
  const bool is_even = call.begins.back() == call.longest() * call.group.size();
  if (call.dim == 0 && is_even) {
    // This shares memory with `all` without being a view, which a Function may
    // not return to be changed in place.
    sizes.erase(sizes.begin());
    sizes[0] *= call.group.size();
    PendingResult pending(at::_unsafe_view(all, sizes));
    pending.collective = BegunExchange::all_gather(call.group, all, own);
    return pending;
  }
  sizes.erase(sizes.begin());
  sizes[static_cast<std::size_t>(call.dim)] = call.begins.back();
  PendingResult pending(at::empty(sizes, own.options()));
  pending.dim = call.dim;
  for (int rank = 0; rank < call.group.size(); ++rank) {
    pending.slices.push_back(all[rank].narrow(call.dim, 0, call.size(rank)));
  }
  pending.collective = BegunExchange::all_gather(call.group, all, own);
  return pending;
}

PendingResult begin_reduce_scatter(
    const at::Tensor& tensor,
    const RegionCall& call) {
  const at::Tensor slices = stacked_slices(tensor, call);
  at::Tensor own = at::empty(slices.sizes().slice(1), slices.options());
  auto collective =
      BegunExchange::reduce_scatter(call.group, own.unsqueeze(0), slices);
  const std::int64_t size = call.size(call.group.rank());
  PendingResult pending(own);
  if (own.size(call.dim) != size) {
    pending.slices = {own.narrow(call.dim, 0, size)};
    pending.dim = call.dim;
    pending.tensor = at::empty(pending.slices[0].sizes(), own.options());
  }
  pending.collective = std::move(collective);
  return pending;
}

}  // namespace

void PendingResult::wait() {
  collective.wait();
  if (!slices.empty()) {
    const at::NoGradGuard no_grad;
    at::cat_out(tensor, slices, dim);
    slices.clear();
  }
}

PendingResult begin_collective(
    const at::Tensor& tensor,
    const RegionCall& call) {
  const at::NoGradGuard no_grad;
  switch (call.op) {
    case RegionOp::reduce: {
      PendingResult pending(
          tensor.detach().clone(at::MemoryFormat::Contiguous));
      pending.collective =
          BegunExchange::all_reduce(call.group, pending.tensor);
      return pending;
    }
    case RegionOp::gather_partial:
    case RegionOp::gather_equal:
      return begin_gather(tensor, call);
    case RegionOp::reduce_scatter:
      return begin_reduce_scatter(tensor, call);
    default:
      return PendingResult(result_of(tensor, call));
  }
}

at::Tensor result_of(const at::Tensor& tensor, const RegionCall& call) {
  switch (call.op) {
    case RegionOp::copy:
      return tensor.view_as(tensor);
    case RegionOp::reduce:
    case RegionOp::gather_partial:
    case RegionOp::gather_equal:
    case RegionOp::reduce_scatter: {
      PendingResult pending = begin_collective(tensor, call);
      pending.wait();
      return pending.tensor;
    }
    case RegionOp::slice:
      // A copy, since in-place operators refuse views made in a Function.
      return call.slice(tensor, call.group.rank())
          .clone(at::MemoryFormat::Contiguous);
  }
  throw InternalError("[comm] a region has no such collective");
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

}  // namespace

at::Tensor record_collective(
    const at::Tensor& tensor,
    const c10::intrusive_ptr<RegionCall>& call) {
  if (call->group.size() == 1) return tensor;
  if (at::GradMode::is_enabled() && tensor.requires_grad())
    return RegionFunction::apply(tensor, call);
  return call->op == RegionOp::copy ? tensor : result_of(tensor, *call);
}

}  // namespace accelerate::detail
