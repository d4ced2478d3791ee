#include "parallel/replicate/average_gradients.h"

#include <map>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

void average(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    at::ScalarType dtype,
    const AverageOptions& options) {
  const double divisor = options.divisor.value_or(group.size());
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      flat.push_back(at::zeros(
          {parameter.numel()},
          parameter.options().dtype(dtype).requires_grad(false)));
    } else if (options.send_in) {
      flat.push_back(gradient.reshape(-1).div(divisor).to(dtype));
    } else {
      flat.push_back(gradient.reshape(-1).to(dtype));
    }
  }
  const at::Tensor message = at::cat(flat);
  flat.clear();
  group.all_reduce(message);
  if (!options.send_in) message.div_(divisor);
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

// The dtype in which gradients of `parameter` are summed.
at::ScalarType sum_dtype(
    const at::Tensor& parameter,
    const AverageOptions& options) {
  const at::ScalarType own = parameter.scalar_type();
  if (options.send_in) return at::isFloatingType(own) ? *options.send_in : own;
  return options.sum_in ? at::promote_types(own, *options.sum_in) : own;
}

}  // namespace

void average_gradients(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    const AverageOptions& options) {
  if (group.size() == 1 || parameters.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> has_gradient;
  for (const at::Tensor& parameter : parameters)
    has_gradient.push_back(parameter.grad().defined() ? 1 : 0);
  const at::Tensor owners = at::tensor(has_gradient, at::kLong);
  group.all_reduce(owners);
  const auto* const num_owners = owners.const_data_ptr<std::int64_t>();

  // The next message's parameters, and its size in bytes, by the dtype of the
  // sum.
  std::map<at::ScalarType, std::vector<at::Tensor>> messages;
  std::map<at::ScalarType, std::int64_t> sizes;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (num_owners[i] == 0) continue;
    const at::ScalarType dtype = sum_dtype(parameters[i], options);
    messages[dtype].push_back(parameters[i]);
    sizes[dtype] += static_cast<std::int64_t>(parameters[i].nbytes());
    if (sizes[dtype] < options.message_bytes) continue;
    average(group, std::exchange(messages[dtype], {}), dtype, options);
    sizes[dtype] = 0;
  }
  for (const auto& [dtype, rest] : messages) {
    if (!rest.empty()) average(group, rest, dtype, options);
  }
}

}  // namespace accelerate::detail
