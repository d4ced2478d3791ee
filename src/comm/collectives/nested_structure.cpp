#include <accelerate/nested_structure.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/objects.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

at::Tensor empty_like_on(const at::Tensor& tensor, at::Device device) {
  return at::empty(
      tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(device));
}

}  // namespace

namespace detail {

at::Tensor without_values(const at::Tensor& tensor) {
  return empty_like_on(tensor, at::kMeta);
}

void initialize(at::Tensor& tensor, at::Device device) {
  if (tensor.defined() && tensor.is_meta())
    tensor = empty_like_on(tensor, device);
}

std::vector<std::vector<std::int64_t>> shapes_of(
    const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) shapes.push_back(tensor.sizes().vec());
  }
  return shapes;
}

std::optional<at::Device> device_of(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) return tensor.device();
  }
  return std::nullopt;
}

}  // namespace detail

void ApplyVisitor::operator()(at::Tensor& tensor) const {
  const bool is_accepted =
      options_.test_type ? options_.test_type(tensor) : tensor.defined();
  if (is_accepted) {
    tensor = function_(tensor);
  } else {
    visit_other("a tensor");
  }
}

void ApplyVisitor::visit_other(const char* kind) const {
  if (!options_.error_on_other_type) return;
  throw ConfigError(detail::format(
      "[nested] recursively_apply found {} that its test rejects; take it out "
      "of the value, or leave error_on_other_type false",
      kind));
}

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
        "[nested] copy_tensor_to_devices must get a tensor on exactly one "
        "rank, and undefined tensors on the others, but "
        "got one on {} of {} ranks",
        owners.size(),
        group.size()));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor copy = empty_like_on(
      structures[static_cast<std::size_t>(owners[0])], world.device());
  if (tensor.defined()) copy.copy_(tensor);
  group.broadcast(copy, owners[0]);
  return copy;
}

}  // namespace accelerate
