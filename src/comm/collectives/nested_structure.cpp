#include <accelerate/nested_structure.h>

#include <cstddef>
#include <string>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/objects.h>

#include "base/text/text.h"

namespace accelerate {

namespace detail {

void throw_other_type(const char* kind) {
  throw ConfigError(format(
      "[nested] recursively_apply found {} that its test refuses; take it out "
      "of the value, or leave error_on_other_type false",
      kind));
}

at::Tensor without_values(const at::Tensor& tensor) {
  return at::empty(
      tensor.sizes(),
      at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
}

at::Tensor empty_like_on(const at::Tensor& tensor, at::Device device) {
  return at::empty(
      tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(device));
}

}  // namespace detail

at::Tensor copy_tensor_to_devices(
    const at::Tensor& tensor,
    const World& world) {
  const Group& group = world.group();
  const at::Tensor structure =
      tensor.defined() ? detail::without_values(tensor) : at::Tensor();
  std::vector<at::Tensor> structures;
  for (const std::string& bytes :
       group.all_gather_bytes(detail::tensor_to_bytes(structure))) {
    structures.push_back(detail::tensor_from_bytes(bytes));
  }
  std::vector<int> owners;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (structures[static_cast<std::size_t>(rank)].defined())
      owners.push_back(rank);
  }
  if (owners.size() != 1) {
    throw ConfigError(detail::format(
        "[nested] copy_tensor_to_devices was given a tensor on {} of {} ranks; "
        "give it one on exactly one rank, and an undefined tensor on the "
        "others",
        owners.size(),
        group.size()));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor copy = detail::empty_like_on(
      structures[static_cast<std::size_t>(owners[0])], world.device());
  if (tensor.defined()) copy.copy_(tensor);
  group.broadcast(copy, owners[0]);
  return copy;
}

}  // namespace accelerate
