#include "gate/factory_scope.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>

#include "gate/gate_key.h"

namespace accelerate::detail {

namespace {

// Number of recent tensors that are checked again whenever one is made. Modules
// register a parameter right after making it.
constexpr std::size_t kMostRecent = 16;

// Number of entries from which on those of destroyed tensors are removed.
constexpr std::size_t kLeastPruned = 1024;

// Thread-local because the scope includes the dispatch key on its own thread
// only: modules built on other threads are made as usual.
thread_local FactoryScope* innermost_scope = nullptr;

// Whether torch::tensor() is making the tensor: it asks for one below autograd
// alone, where torch::zeros() and the like are below ADInplaceOrView as well,
// and writes the values to its memory.
bool will_have_values() {
  return c10::impl::tls_is_dispatch_key_excluded(
             c10::DispatchKey::AutogradFunctionality) &&
      !c10::impl::tls_is_dispatch_key_excluded(
             c10::DispatchKey::ADInplaceOrView);
}

}  // namespace

void move_in_place(const at::Tensor& tensor, c10::Device device) {
  if (tensor.device() == device) return;
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard as_usual(kGateKey);
  const at::Tensor moved = tensor.is_meta() || device.is_meta()
      ? at::empty_strided(
            tensor.sizes(),
            tensor.strides(),
            tensor.options().device(device).requires_grad(false))
      : tensor.detach().to(device);
  // set_data() refuses a tensor of another device type.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
}

FactoryScope::FactoryScope(c10::Device device, Tensors which)
    : device_(device),
      which_(which),
      outer_(std::exchange(innermost_scope, this)),
      include_(kGateKey) {
  register_gate_fallback();
}

FactoryScope::~FactoryScope() {
  innermost_scope = outer_;
  try {
    while (!made_.empty()) {
      const c10::TensorImpl* const tensor = made_.begin()->first;
      move_if_parameter(tensor);
      made_.erase(tensor);
    }
  } catch (const std::exception&) {
    // Out of memory: tensors that have not been moved stay where they were
    // made.
  }
}

FactoryScope* FactoryScope::innermost() { return innermost_scope; }

bool FactoryScope::before(
    const c10::OperatorHandle& operation,
    std::vector<c10::IValue>& stack) {
  if (which_ == Tensors::all) return redirect(operation, stack);
  while (!recent_.empty() && recent_.size() >= kMostRecent) recent_.pop_front();
  for (const c10::TensorImpl* tensor : recent_) move_if_parameter(tensor);
  const std::size_t count = operation.schema().arguments().size();
  for (const c10::IValue& value : std::span(stack).last(count))
    move_arguments(value);
  return outer_ != nullptr && outer_->before(operation, stack);
}

void FactoryScope::after(std::span<const c10::IValue> results) {
  if (outer_ != nullptr) outer_->after(results);
  if (which_ == Tensors::all) return;
  for (const c10::IValue& value : results) track(value);
}

// Makes a factory function for the CPU use the scope's device. Returns false if
// the operator takes tensors, and so is not a factory function.
bool FactoryScope::redirect(
    const c10::OperatorHandle& operation,
    std::vector<c10::IValue>& stack) const {
  const auto& arguments = operation.schema().arguments();
  c10::IValue* device = nullptr;
  c10::IValue* pin_memory = nullptr;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = stack[stack.size() - arguments.size() + i];
    if (value.isTensor() || value.isTensorList()) return false;
    if (arguments[i].name() == "device") device = &value;
    if (arguments[i].name() == "pin_memory") pin_memory = &value;
  }
  const bool is_for_cpu = device != nullptr &&
      (device->isNone() ||
       (device->isDevice() && device->toDevice().is_cpu())) &&
      !will_have_values();
  if (!is_for_cpu) return true;
  *device = device_;
  if (pin_memory != nullptr) *pin_memory = c10::IValue();
  return true;
}

void FactoryScope::track(const c10::IValue& value) {
  if (!value.isTensor()) return;
  const at::Tensor& tensor = value.toTensor();
  // A tensor with another owner was not made by this operator.
  if (!tensor.defined() || !tensor.is_cpu() || tensor.use_count() > 1) {
    return;
  }
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (made_.size() >= most_made_) {
    std::erase_if(
        made_, [](const auto& item) { return item.second.expired(); });
    most_made_ = std::max(kLeastPruned, 2 * made_.size());
  }
  made_.insert_or_assign(impl, WeakTensor(tensor.getIntrusivePtr()));
  recent_.push_back(impl);
}

void FactoryScope::move_arguments(const c10::IValue& value) {
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) move_arguments(item);
  } else if (value.isTensor() && value.toTensor().defined()) {
    move_if_parameter(value.toTensor().unsafeGetTensorImpl());
  }
}

void FactoryScope::move_if_parameter(const c10::TensorImpl* tensor) {
  const auto found = made_.find(tensor);
  if (found == made_.end()) return;
  const auto held = found->second.lock();
  if (!held) {
    made_.erase(found);
    return;
  }
  const at::Tensor handle(held);
  if (!handle.requires_grad() || !handle.is_leaf()) return;
  made_.erase(found);
  move_in_place(handle, device_);
}

}  // namespace accelerate::detail
