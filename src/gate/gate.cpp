#include "gate/gate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <accelerate/empty_weights.h>
#include <accelerate/error.h>

#include "base/text.h"
#include "gate/storage_access.h"

namespace accelerate::detail {

namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// Keepers are called before autograd and autocast (GateKeeper).
static_assert(kKey > c10::DispatchKey::AutogradFunctionality);
static_assert(kKey > c10::DispatchKey::AutocastCPU);
static_assert(kKey > c10::DispatchKey::AutocastCUDA);

// The deleter that identifies storages of gated tensors. It has nothing to
// delete: the context is owned by a GatedTensor.
void gate_deleter(void*) {}

// Thread-local because gates still apply to the operators of other threads (of
// a backward, of a second model).
thread_local bool bypasses_gates = false;

// Thread-local because the scope includes the dispatch key on its own thread
// only: modules built on other threads get memory.
thread_local int num_empty_scopes = 0;

// Gates apply to the operator that a keeper runs, not to the keeper's own
// operators.
struct StopAtGates {
  StopAtGates() { bypasses_gates = false; }
  ~StopAtGates() { bypasses_gates = true; }
  StopAtGates(const StopAtGates&) = delete;
  StopAtGates& operator=(const StopAtGates&) = delete;
};

// Makes a factory function for the CPU use the meta device. Returns false if
// the operator takes tensors, and so is not a factory function.
bool make_empty(
    const c10::OperatorHandle& operation,
    torch::jit::Stack* stack) {
  const auto& arguments = operation.schema().arguments();
  c10::IValue* device = nullptr;
  c10::IValue* pin_memory = nullptr;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    if (value.isTensor() || value.isTensorList()) return false;
    if (arguments[i].name() == "device") device = &value;
    if (arguments[i].name() == "pin_memory") pin_memory = &value;
  }
  const bool is_for_cpu = device != nullptr &&
      (device->isNone() || (device->isDevice() && device->toDevice().is_cpu()));
  if (!is_for_cpu) return true;
  *device = c10::Device(c10::kMeta);
  if (pin_memory != nullptr) *pin_memory = c10::IValue();
  return true;
}

using Keepers = c10::SmallVector<GateKeeper*, 2>;

}  // namespace

BypassGates::BypassGates() : before_(std::exchange(bypasses_gates, true)) {}

BypassGates::~BypassGates() { bypasses_gates = before_; }

struct GatedTensor::Entry {
  GateKeeper& keeper;
  std::size_t unit;
  /// Owns the memory; undefined if there is none.
  at::Tensor memory;
};

struct GatedCall::State {
  const c10::OperatorHandle& operation;
  c10::DispatchKeySet keys;
  torch::jit::Stack& stack;
  bool makes_empty;
  Keepers keepers = {};
  std::size_t next_keeper = 0;
  bool has_results = false;

  [[nodiscard]] std::size_t num_arguments() const {
    return operation.schema().arguments().size();
  }
  [[nodiscard]] std::size_t num_results() const {
    return operation.schema().returns().size();
  }
  std::span<c10::IValue> last(std::size_t count) {
    return std::span(stack).last(count);
  }
};

/// The fallback that the dispatcher calls; a friend of GatedTensor and
/// GatedCall.
struct GateFallback {
  static const GatedTensor::Entry* entry_of(const c10::IValue& value) {
    if (!value.isTensor()) return nullptr;
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.key_set().has(kKey) ||
        !tensor.has_storage()) {
      return nullptr;
    }
    const at::DataPtr& data =
        tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    if (data.get_deleter() != &gate_deleter) return nullptr;
    return static_cast<const GatedTensor::Entry*>(data.get_context());
  }

  static void announce(const c10::IValue& value, Keepers& keepers) {
    if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) announce(item, keepers);
      return;
    }
    const GatedTensor::Entry* const entry = entry_of(value);
    if (entry == nullptr) return;
    GateKeeper* const keeper = &entry->keeper;
    if (std::find(keepers.begin(), keepers.end(), keeper) == keepers.end())
      keepers.push_back(keeper);
    keeper->before_read(entry->unit, entry->memory.defined());
  }

  static void pass_on(const GatedCall::State& state) {
    // Operators inside this one take the same tensors, for which keepers need
    // no second call; factory functions inside must still be intercepted.
    std::optional<c10::impl::ExcludeDispatchKeyGuard> exclude;
    if (!state.makes_empty) exclude.emplace(kKey);
    state.operation.redispatchBoxed(
        state.keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey),
        &state.stack);
  }

  static void call(
      const c10::OperatorHandle& operation,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    GatedCall::State state{
        .operation = operation,
        .keys = keys,
        .stack = *stack,
        .makes_empty = num_empty_scopes > 0 && make_empty(operation, stack)};
    if (bypasses_gates) {
      pass_on(state);
      return;
    }
    const BypassGates bypass;
    const std::size_t end = stack->size();
    for (std::size_t i = end - state.num_arguments(); i < end; ++i)
      announce((*stack)[i], state.keepers);
    GatedCall(state).run();
  }
};

namespace {

// A process can have one fallback per dispatch key; all gates share it.
void register_gate_fallback() {
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(
        torch::CppFunction::makeFromBoxedFunction<&GateFallback::call>());
    return made;
  }();
}

}  // namespace

const c10::OperatorHandle& GatedCall::operation() const {
  return state_.operation;
}

std::span<c10::IValue> GatedCall::arguments() {
  if (state_.has_results) return {};
  return state_.last(state_.num_arguments());
}

std::span<c10::IValue> GatedCall::results() {
  if (!state_.has_results) return {};
  return state_.last(state_.num_results());
}

void GatedCall::run() {
  if (state_.has_results)
    throw InternalError("[gate] a keeper ran an operator a second time");
  if (state_.next_keeper == state_.keepers.size()) {
    const StopAtGates stop;
    GateFallback::pass_on(state_);
    state_.has_results = true;
    return;
  }
  state_.keepers[state_.next_keeper++]->call(*this);
  if (!state_.has_results) {
    throw InternalError(format(
        "[gate] a keeper neither ran {} nor replaced it",
        state_.operation.operator_name().name));
  }
}

void GatedCall::replace(c10::IValue result) {
  if (state_.has_results || state_.num_results() != 1) {
    throw InternalError(format(
        "[gate] a keeper replaced {}, which has already run, or does not have "
        "exactly one result",
        state_.operation.operator_name().name));
  }
  torch::jit::drop(state_.stack, state_.num_arguments());
  torch::jit::push(state_.stack, std::move(result));
  state_.has_results = true;
}

std::optional<std::size_t> GatedTensor::unit_of(
    const c10::IValue& value,
    const GateKeeper& keeper) {
  const Entry* const entry = GateFallback::entry_of(value);
  if (entry == nullptr || &entry->keeper != &keeper) return std::nullopt;
  return entry->unit;
}

GatedTensor::GatedTensor(
    const at::Tensor& tensor,
    UnavailableMessages messages,
    GateKeeper& keeper,
    std::size_t unit,
    c10::Device device)
    : tensor_(tensor), messages_(std::move(messages)) {
  register_gate_fallback();
  const bool is_empty = tensor.is_meta();
  // variable_data() instead of detach(), since writing to the memory must not
  // count as a change of the tensor.
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
  // The TensorImpl stays, so every handle to the parameter sees the change.
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
    make_unreadable(storage, std::move(messages_.afterwards));
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
    throw InternalError(format(
        "[gate] a tensor of {} bytes was filled with memory of {} bytes",
        storage_.nbytes(),
        memory.nbytes()));
  }
  entry_->memory = memory;
  c10::StorageImpl& storage = *storage_.unsafeGetStorageImpl();
  make_readable(storage);
  storage.set_data_ptr_noswap(at::DataPtr(
      const_cast<void*>(memory.const_data_ptr()),
      entry_.get(),
      &gate_deleter,
      storage_.device()));
}

at::Tensor GatedTensor::release() {
  at::Tensor memory = std::exchange(entry_->memory, at::Tensor());
  c10::StorageImpl& storage = *storage_.unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(
      at::DataPtr(nullptr, entry_.get(), &gate_deleter, storage_.device()));
  make_unreadable(storage, messages_.while_kept);
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
  detail::register_gate_fallback();
  scope_ = std::make_unique<Scope>();
}

InitEmptyWeights::~InitEmptyWeights() = default;

}  // namespace accelerate
