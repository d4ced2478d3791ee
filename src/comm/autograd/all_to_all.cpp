#include "comm/autograd/all_to_all.h"

#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AllToAllCall final : torch::CustomClassHolder {
  AllToAllCall(Group ranks, AllToAllDims sizes)
      : group(std::move(ranks)), dims(std::move(sizes)) {}

  Group group;
  AllToAllDims dims;
};

std::int64_t sum_of(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

void check_sizes(
    const at::Tensor& tensor,
    const Group& group,
    const AllToAllDims& dims) {
  const auto count = static_cast<std::size_t>(group.size());
  const bool fits = dims.split_dim != dims.concat_dim &&
      dims.split_sizes.size() == count && dims.concat_sizes.size() == count &&
      sum_of(dims.split_sizes) == tensor.size(dims.split_dim) &&
      dims.concat_sizes[static_cast<std::size_t>(group.rank())] ==
          tensor.size(dims.concat_dim);
  if (fits) return;
  throw ConfigError(format(
      "[comm] an all-to-all of {} among {} ranks was asked to give away {} of "
      "dimension {} and to take {} in dimension {}; sizes along the first must "
      "add up to the tensor's, and this rank's along the second must be the "
      "tensor's",
      tensor.sizes(),
      group.size(),
      at::IntArrayRef(dims.split_sizes),
      dims.split_dim,
      at::IntArrayRef(dims.concat_sizes),
      dims.concat_dim));
}

at::Tensor exchange_pieces(
    const at::Tensor& tensor,
    const Group& group,
    const AllToAllDims& dims) {
  if (group.size() == 1) return tensor.clone();
  // Flattened, since sent and received parts differ in two dimensions.
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part :
       tensor.split_with_sizes(dims.split_sizes, dims.split_dim))
    parts.push_back(part.reshape({-1}));
  std::vector<at::Tensor> received = group.all_to_all(parts);
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  const auto rank = static_cast<std::size_t>(group.rank());
  sizes[static_cast<std::size_t>(dims.split_dim)] = dims.split_sizes[rank];
  for (std::size_t peer = 0; peer < received.size(); ++peer) {
    sizes[static_cast<std::size_t>(dims.concat_dim)] = dims.concat_sizes[peer];
    received[peer] = received[peer].view(sizes);
  }
  return at::cat(received, dims.concat_dim);
}

class AllToAll : public torch::autograd::Function<AllToAll> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& tensor,
      const c10::intrusive_ptr<AllToAllCall>& call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return exchange_pieces(tensor, call->group, call->dims);
  }

  // Itself differentiable, being another all-to-all.
  static variable_list backward(
      AutogradContext* context,
      const variable_list& grads) {
    const auto call = c10::static_intrusive_pointer_cast<AllToAllCall>(
        context->saved_data["call"].toCapsule());
    const AllToAllDims& dims = call->dims;
    return {
        all_to_all_autograd(
            grads[0],
            call->group,
            {dims.concat_dim,
             dims.concat_sizes,
             dims.split_dim,
             dims.split_sizes}),
        at::Tensor()};
  }
};

}  // namespace

at::Tensor all_to_all_autograd(
    const at::Tensor& tensor,
    const Group& group,
    const AllToAllDims& dims) {
  check_sizes(tensor, group, dims);
  return AllToAll::apply(
      tensor, c10::make_intrusive<AllToAllCall>(group, dims));
}

}  // namespace accelerate::detail
