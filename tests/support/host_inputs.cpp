#include "support/host_inputs.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace accelerate::testing {

namespace {

// Above autograd. No higher key is free, so autocast, which leaves inputs in host
// memory alone, calls gather_host_inputs() itself.
constexpr c10::DispatchKey kKey = c10::DispatchKey::AutocastXLA;

thread_local bool takes_host_inputs = false;

// The device matters to what they do.
bool tells_devices_apart(const std::string& name) {
  static const std::set<std::string> names{
      "aten::copy_",
      "aten::set_",
      "aten::set_data",
      "aten::to",
      "aten::type_as"};
  return names.contains(name);
}

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

bool is_changed(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Where an operator must find its tensors if they are apart; nothing where no
// device takes part.
std::optional<c10::Device> common_place(
    const c10::OperatorHandle& op,
    at::ArrayRef<c10::IValue> values) {
  if (tells_devices_apart(op.operator_name().name)) return std::nullopt;
  std::optional<c10::Device> device, changed;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (const at::Tensor& tensor : tensors_in(values[i])) {
      if (!tensor.defined()) continue;
      if (is_changed(op.schema().arguments()[i])) changed = tensor.device();
      if (tensor.is_privateuseone() && !device) device = tensor.device();
    }
  }
  return device && changed ? changed : device;
}

}  // namespace

bool gather_host_inputs(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  if (!takes_host_inputs) return true;
  const auto& arguments = op.schema().arguments();
  const auto place =
      common_place(op, torch::jit::last(*stack, arguments.size()));
  if (!place) return true;
  const auto moved = [&](const at::Tensor& tensor) {
    const bool is_apart = tensor.defined() && tensor.dim() > 0 &&
        tensor.is_cpu() != place->is_cpu();
    return is_apart ? tensor.to(*place) : tensor;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_changed(arguments[i])) continue;
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    if (value.isTensor()) {
      value = moved(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = moved(tensor);
      value = std::move(tensors);
    }
  }
  return !place->is_cpu();
}

void let_devices_take_host_tensors() {
  takes_host_inputs = true;
  // Excluded by default, as all keys of autocast.
  c10::impl::tls_set_dispatch_key_excluded(kKey, false);
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

namespace {
void gather_and_call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  gather_host_inputs(op, stack);
  op.callBoxed(stack);
}
}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastXLA, library) {
  library.fallback(
      torch::CppFunction::makeFromBoxedFunction<&gather_and_call>());
}

}  // namespace accelerate::testing
