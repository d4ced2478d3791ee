#include "gate/following.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>

#include "gate/backward_pass.h"
#include "gate/gate_entry.h"
#include "gate/gate_key.h"
#include "gate/storage_access.h"

namespace accelerate::detail {

namespace {

std::atomic<int> num_following = 0;

// Thread-local because each thread computes a forward of its own.
thread_local std::optional<c10::Device> last_device;

// Operators that accept tensors of several devices.
constexpr std::string_view kDeviceChanging[] = {
    "aten::copy_",
    "aten::to",
    "aten::type_as",
    "aten::set_"};

bool takes_several_devices(const c10::OperatorHandle& operation) {
  const std::string& name = operation.operator_name().name;
  return std::ranges::find(kDeviceChanging, name) != std::end(kDeviceChanging);
}

// Lengths of sequences, which LibTorch expects on the CPU.
bool stays_on_host(
    const c10::OperatorHandle& operation,
    const c10::Argument& argument) {
  return argument.name() == "batch_sizes" ||
      (argument.name() == "lengths" &&
       operation.operator_name().name == "aten::_pack_padded_sequence");
}

bool has_device(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  return !(tensor.dim() == 0 && tensor.is_cpu());
}

// Calls `visit` with the tensors of a value that must be where an operator
// runs.
template <class Visit>
void for_each_placed(const c10::IValue& value, Visit&& visit) {
  if (!value.isList()) {
    if (has_device(value)) visit(value.toTensor());
    return;
  }
  for (const c10::IValue& item : value.toListRef())
    if (has_device(item)) visit(item.toTensor());
}

bool has_tensors(const c10::IValue& value) {
  if (!value.isList()) return value.isTensor();
  const auto items = value.toListRef();
  return std::ranges::any_of(
      items, [](const c10::IValue& item) { return item.isTensor(); });
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

std::optional<c10::Device> device_written_to(
    const c10::OperatorHandle& operation,
    std::span<const c10::IValue> arguments) {
  const auto& schema = operation.schema().arguments();
  std::optional<c10::Device> device;
  for (std::size_t i = 0; i < schema.size(); ++i) {
    if (device || !is_written(schema[i])) continue;
    for_each_placed(arguments[i], [&](const at::Tensor& tensor) {
      if (!device) device = tensor.device();
    });
  }
  return device;
}

// Returns the value itself if all of it is already there.
c10::IValue moved(const c10::IValue& value, c10::Device device) {
  const auto there = [&](const at::Tensor& tensor) {
    return tensor.device() == device ? tensor : tensor.to(device);
  };
  if (!value.isList())
    return has_device(value) ? c10::IValue(there(value.toTensor())) : value;
  bool is_there = true;
  for_each_placed(value, [&](const at::Tensor& tensor) {
    is_there = is_there && tensor.device() == device;
  });
  if (is_there) return value;
  // The list may belong to the program.
  c10::List<c10::IValue> list = value.toList().copy();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const c10::IValue item = list.get(i);
    if (has_device(item)) list.set(i, there(item.toTensor()));
  }
  return list;
}

/// Devices of some tensors.
struct DeviceChoice {
  void add(c10::Device device) {
    has_several = has_several || first.value_or(device) != device;
    has_last = has_last || last_device == device;
    if (!first) first = device;
  }
  std::optional<c10::Device> first;
  bool has_several = false;
  bool has_last = false;
};

}  // namespace

Following::Following() {
  register_gate_fallback();
  ++num_following;
}

Following::~Following() { --num_following; }

bool Following::is_on() { return num_following > 0; }

bool is_follower(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kGateKey) &&
      entry_of(tensor) == nullptr;
}

void follow(const c10::IValue& value) {
  if (runs_backward()) return;
  for_each_placed(value, [](const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided || !tensor.has_storage() ||
        tensor.is_meta()) {
      return;
    }
    // Written once, since other threads may read it.
    if (tensor.key_set().has(kGateKey)) return;
    c10::DispatchKeySet& keys = access_keys(*tensor.unsafeGetTensorImpl());
    keys = keys.add(kGateKey);
  });
}

void stop_following(const at::Tensor& tensor) {
  if (!is_follower(tensor)) return;
  c10::DispatchKeySet& keys = access_keys(*tensor.unsafeGetTensorImpl());
  keys = keys.remove(kGateKey);
}

std::optional<c10::Device> device_of_call(
    const c10::OperatorHandle& operation,
    std::span<const c10::IValue> arguments) {
  const auto& schema = operation.schema().arguments();
  DeviceChoice all, followers;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (stays_on_host(operation, schema[i])) continue;
    for_each_placed(arguments[i], [&](const at::Tensor& tensor) {
      all.add(tensor.device());
      if (is_follower(tensor)) followers.add(tensor.device());
    });
  }
  if (!all.has_several || takes_several_devices(operation)) return std::nullopt;
  return followers.has_several && followers.has_last ? last_device
                                                     : followers.first;
}

bool move_arguments(
    const c10::OperatorHandle& operation,
    std::span<c10::IValue> arguments,
    c10::Device device) {
  last_device = device;
  if (takes_several_devices(operation)) return false;
  device = device_written_to(operation, arguments).value_or(device);
  const auto& schema = operation.schema().arguments();
  bool has_moved = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!has_tensors(arguments[i]) || stays_on_host(operation, schema[i]))
      continue;
    c10::IValue value = moved(arguments[i], device);
    has_moved = has_moved || !value.is(arguments[i]);
    arguments[i] = std::move(value);
  }
  return has_moved;
}

}  // namespace accelerate::detail
