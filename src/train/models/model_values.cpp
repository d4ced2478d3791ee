#include "train/models/model_values.h"

#include <algorithm>
#include <memory>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "params/materialize.h"
#include "train/session/prepared.h"

namespace accelerate::detail {

namespace {

// LibTorch's pointers to accumulators are shared pointers or, in newer
// versions, intrusive ones.
template <class Pointer>
auto weak(const Pointer& pointer) {
  if constexpr (requires { std::weak_ptr(pointer); }) {
    return std::weak_ptr(pointer);
  } else {
    return c10::weak_intrusive_ptr<typename Pointer::element_type>(pointer);
  }
}

// Moves a tensor in place, visible through every handle, like Module::to(),
// which rejects some devices.
void move_tensor(at::Tensor tensor, const at::Device& device) {
  const at::Tensor moved = tensor.detach().to(device);
  if (at::_has_compatible_shallow_copy_type(tensor, moved))
    return tensor.set_data(moved);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  // The gradient accumulator remembers the device, so a new one is made.
  namespace impl = torch::autograd::impl;
  using Accumulator = decltype(impl::try_get_grad_accumulator(tensor));
  if (tensor.requires_grad())
    impl::set_grad_accumulator(tensor, weak(Accumulator()));
}

}  // namespace

std::vector<at::Tensor> parameters_and_buffers(
    const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  std::erase_if(tensors, [](const at::Tensor& t) { return !t.defined(); });
  return tensors;
}

bool has_no_values(const at::Tensor& tensor) { return tensor.is_meta(); }

void move_to_device(torch::nn::Module& module, const at::Device& device) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : parameters_and_buffers(module)) {
    if (!has_no_values(tensor) && tensor.device() != device)
      move_tensor(tensor, device);
  }
}

at::Device device_of(
    const torch::nn::Module& module,
    const at::Device& otherwise) {
  for (const at::Tensor& tensor : parameters_and_buffers(module)) {
    if (!has_no_values(tensor)) return tensor.device();
  }
  return otherwise;
}

bool lacks_values(
    const Mesh& mesh,
    const torch::nn::Module& module,
    bool keeps_own) {
  const auto tensors = parameters_and_buffers(module);
  const bool mine = std::ranges::any_of(tensors, has_no_values);
  const Group group = replica_group(Layout(), mesh);
  const auto all = group.all_gather_bytes(mine ? "empty" : "full");
  const int first = group.world_ranks()[0];
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    if (all[0] == "full") {
      if (!keeps_own) continue;
      throw ConfigError(format(
          "[train] rank {} built its model without values, and with "
          "evaluation_mode it does not get those of rank {}; build it with "
          "values on all ranks, or unset evaluation_mode",
          group.world_ranks()[rank],
          first));
    }
    throw ConfigError(format(
        "[train] rank {} built its model inside init_empty_weights() and rank "
        "{} did not, but all begin with rank {}'s values; build it with values "
        "on rank {}, or without on all",
        first,
        group.world_ranks()[rank],
        first,
        first));
  }
  return all[0] == "empty";
}

void give_memory(PreparedModel& model) {
  const at::NoGradGuard no_grad;
  const auto tensors = model.strategies.traits().takes_empty
      ? model.module->buffers()
      : parameters_and_buffers(*model.module);
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !has_no_values(tensor)) continue;
    materialize(tensor, model.placement.device);
    tensor.detach().zero_();
  }
}

}  // namespace accelerate::detail
