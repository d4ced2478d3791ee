#include "gate/gate.h"

#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <accelerate/empty_weights.h>
#include <accelerate/error.h>

#include "base/text.h"
#include "gate/storage_access.h"

namespace accelerate::detail {

namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// Marks storages as ours; there is nothing to delete, a GatedTensor owns it.
void mark(void*) {}

thread_local bool passes_gates = false;

thread_local int num_empty_scopes = 0;

void visit(const c10::IValue& value);

// Tensors made from nothing, and for the CPU, are made on the meta device.
// False: the operator takes tensors, and makes what is like them.
bool make_empty(
    const c10::OperatorHandle& operation,
    torch::jit::Stack* stack) {
  const auto& arguments = operation.schema().arguments();
  c10::IValue* device = nullptr;
  c10::IValue* pins = nullptr;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    if (value.isTensor() || value.isTensorList()) return false;
    if (arguments[i].name() == "device") device = &value;
    if (arguments[i].name() == "pin_memory") pins = &value;
  }
  const bool is_for_cpu = device != nullptr &&
      (device->isNone() || (device->isDevice() && device->toDevice().is_cpu()));
  if (!is_for_cpu) return true;
  *device = c10::Device(c10::kMeta);
  if (pins != nullptr) *pins = c10::IValue();
  return true;
}

void trap(
    const c10::OperatorHandle& operation,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const bool makes_empty = num_empty_scopes > 0 && make_empty(operation, stack);
  if (!passes_gates) {
    const PassGates passing;
    const std::size_t count = operation.schema().arguments().size();
    for (std::size_t i = stack->size() - count; i < stack->size(); ++i)
      visit((*stack)[i]);
  }
  // Operators inside this one take the same tensors and need no second call;
  // those that make tensors do.
  std::optional<c10::impl::ExcludeDispatchKeyGuard> exclude;
  if (!makes_empty) exclude.emplace(kKey);
  operation.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// A process can have one fallback of a key; it is the same for all gates.
void register_trap() {
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&trap>());
    return made;
  }();
}

}  // namespace

PassGates::PassGates() : before_(std::exchange(passes_gates, true)) {}

PassGates::~PassGates() { passes_gates = before_; }

struct GatedTensor::Entry {
  GateKeeper& keeper;
  std::size_t unit;
  /// Keeps the memory.
  at::Tensor memory;
};

void call_keeper(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kKey) || !tensor.has_storage())
    return;
  const at::DataPtr& data =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &mark) return;
  const auto& entry =
      *static_cast<const GatedTensor::Entry*>(data.get_context());
  entry.keeper.before_read(entry.unit, entry.memory.defined());
}

namespace {

void visit(const c10::IValue& value) {
  if (value.isTensor()) {
    call_keeper(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) visit(item);
  }
}

}  // namespace

GatedTensor::GatedTensor(
    const at::Tensor& tensor,
    std::string name,
    GateKeeper& keeper,
    std::size_t unit,
    c10::Device device)
    : tensor_(tensor), name_(std::move(name)) {
  register_trap();
  const bool is_empty = tensor.is_meta();
  // Not detach(): what is written to the memory is no change of the tensor.
  const at::Tensor memory = is_empty
      ? at::empty({0}, tensor.options().device(device).requires_grad(false))
      : tensor.variable_data();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      tensor.nbytes(),
      at::DataPtr(nullptr, memory.device()),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  storage_ = c10::Storage(std::move(storage));
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  auto gated = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(storage_),
      memory.unsafeGetTensorImpl()->key_set().add(kKey),
      tensor.dtype());
  gated->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  // The same TensorImpl, so every handle to the parameter sees it.
  impl->shallow_copy_from(gated);
  entry_ = std::make_unique<Entry>(Entry{keeper, unit, at::Tensor()});
  if (is_empty) {
    release();
  } else {
    fill(memory);
  }
}

GatedTensor::~GatedTensor() {
  c10::StorageImpl& storage = *storage_.unsafeGetStorageImpl();
  if (!is_filled()) {
    storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage_.device()));
    poison(
        storage,
        concat(
            "parameter \"",
            name_,
            "\" was split over the ranks by an Accelerator that is gone; "
            "build the model again, or gather it (full_parameters) before"));
    return;
  }
  auto* const kept = new at::Tensor(entry_->memory);
  storage.set_data_ptr_noswap(at::DataPtr(
      const_cast<void*>(kept->const_data_ptr()),
      kept,
      [](void* context) { delete static_cast<at::Tensor*>(context); },
      storage_.device()));
}

void GatedTensor::fill(const at::Tensor& memory) {
  if (memory.nbytes() != storage_.nbytes()) {
    throw InternalError(
        concat("[gate] memory of another size for parameter \"", name_, "\""));
  }
  entry_->memory = memory;
  c10::StorageImpl& storage = *storage_.unsafeGetStorageImpl();
  heal(storage);
  storage.set_data_ptr_noswap(at::DataPtr(
      const_cast<void*>(memory.const_data_ptr()),
      entry_.get(),
      &mark,
      storage_.device()));
}

at::Tensor GatedTensor::release() {
  at::Tensor memory = std::exchange(entry_->memory, at::Tensor());
  c10::StorageImpl& storage = *storage_.unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(
      at::DataPtr(nullptr, entry_.get(), &mark, storage_.device()));
  poison(
      storage,
      concat(
          "parameter \"",
          name_,
          "\" is split over the ranks and not whole here; read or change it "
          "in the prepared model's forward, or while Accelerator::"
          "full_parameters() lives"));
  return memory;
}

bool GatedTensor::is_filled() const { return entry_->memory.defined(); }

bool GatedTensor::is_bypassed() const {
  return !tensor_.key_set().has(kKey) ||
      tensor_.storage().unsafeGetStorageImpl() !=
      storage_.unsafeGetStorageImpl();
}

}  // namespace accelerate::detail

namespace accelerate {

struct InitEmptyWeights::Scope {
  Scope() { ++detail::num_empty_scopes; }
  ~Scope() { --detail::num_empty_scopes; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  c10::impl::IncludeDispatchKeyGuard include{detail::kKey};
};

InitEmptyWeights::InitEmptyWeights() {
  detail::register_trap();
  scope_ = std::make_unique<Scope>();
}

InitEmptyWeights::~InitEmptyWeights() = default;

}  // namespace accelerate
