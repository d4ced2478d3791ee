#include "parallel/replicate/average_gradients.h"

#include <cstdint>
#include <map>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

constexpr std::int64_t kMessageBytes = 25 << 20;

void average(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    at::ScalarType dtype) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    flat.push_back(
        gradient.defined()
            ? gradient.reshape(-1).to(dtype)
            : at::zeros(
                  {parameter.numel()},
                  parameter.options().dtype(dtype).requires_grad(false)));
  }
  const at::Tensor message = at::cat(flat);
  flat.clear();
  group.all_reduce(message);
  message.div_(group.size());
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor mean =
        message.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) {
      gradient.copy_(mean);
    } else {
      gradient = mean.to(parameter.scalar_type(), false, /*copy=*/true);
    }
  }
}

}  // namespace

void average_gradients(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    std::optional<at::ScalarType> sum_in) {
  if (group.size() == 1 || parameters.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> has_gradient;
  for (const at::Tensor& parameter : parameters)
    has_gradient.push_back(parameter.grad().defined() ? 1 : 0);
  const at::Tensor owners = at::tensor(has_gradient, at::kLong);
  group.all_reduce(owners);
  const auto* const num_owners = owners.const_data_ptr<std::int64_t>();

  // Parameters of the next message, and its bytes, by the dtype of the sum.
  std::map<at::ScalarType, std::vector<at::Tensor>> messages;
  std::map<at::ScalarType, std::int64_t> sizes;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (num_owners[i] == 0) continue;
    const auto dtype = sum_in.value_or(parameters[i].scalar_type());
    messages[dtype].push_back(parameters[i]);
    sizes[dtype] += static_cast<std::int64_t>(parameters[i].nbytes());
    if (sizes[dtype] < kMessageBytes) continue;
    average(group, std::exchange(messages[dtype], {}), dtype);
    sizes[dtype] = 0;
  }
  for (const auto& [dtype, rest] : messages) {
    if (!rest.empty()) average(group, rest, dtype);
  }
}

}  // namespace accelerate::detail
