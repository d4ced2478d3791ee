#include "gate/gate.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/factory_scope.h"
#include "gate/following.h"
#include "gate/gate_entry.h"
#include "gate/gate_key.h"
#include "gate/stop_at_gates.h"
#include "gate/storage_access.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

constexpr c10::DispatchKey kKey = kGateKey;

// Keepers are called before autograd and autocast (GateKeeper).
static_assert(kKey > c10::DispatchKey::AutogradFunctionality);
static_assert(kKey > c10::DispatchKey::AutocastCPU);
static_assert(kKey > c10::DispatchKey::AutocastCUDA);

// Thread-local because gates still apply to other threads' operators (a
// backward's, a second model's).
thread_local bool bypasses_gates = false;

using Keepers = c10::SmallVector<GateKeeper*, 2>;

}  // namespace

BypassGates::BypassGates() : before_(std::exchange(bypasses_gates, true)) {}

BypassGates::~BypassGates() { bypasses_gates = before_; }

StopAtGates::StopAtGates() : before_(std::exchange(bypasses_gates, false)) {}

StopAtGates::~StopAtGates() { bypasses_gates = before_; }

struct GatedCall::State {
  c10::OperatorHandle operation;
  c10::DispatchKeySet keys;
  torch::jit::Stack& stack;
  FactoryScope* factories;
  /// True if the operator is not the one the keys were computed for.
  bool is_another = false;
  Keepers keepers = {};
  std::size_t next_keeper = 0;
  bool has_results = false;
  /// True once a keeper has chosen the device.
  bool has_device = false;
  /// True if arguments have moved to other devices since the keys were taken.
  bool has_moved = false;
  /// True if the results follow the arguments.
  bool is_followed = false;

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
  static void call_for(
      GateKeeper& keeper,
      std::size_t unit,
      bool is_filled,
      Keepers& keepers) {
    if (std::ranges::find(keepers, &keeper) == keepers.end())
      keepers.push_back(&keeper);
    keeper.before_read(unit, is_filled);
  }

  static void announce(const c10::IValue& value, Keepers& keepers) {
    if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) announce(item, keepers);
      return;
    }
    const GateEntry* const entry = entry_of(value);
    if (entry == nullptr) return;
    const bool is_filled = entry->memory.defined();
    for (const TensorWatch& watch : entry->watches)
      call_for(*watch.keeper, watch.unit, is_filled, keepers);
    if (entry->keeper != nullptr)
      call_for(*entry->keeper, entry->unit, is_filled, keepers);
  }

  static void pass_on(GatedCall::State& state) {
    // Operators inside this one take the same tensors, so keepers need no
    // second call; factory functions inside must still be intercepted.
    std::optional<c10::impl::ExcludeDispatchKeyGuard> exclude;
    const bool is_factory = state.factories != nullptr &&
        state.factories->before(state.operation, state.stack);
    if (!is_factory) exclude.emplace(kKey);
    if (state.is_another || state.has_moved ||
        (state.factories != nullptr && !is_factory)) {
      // The keys belong to another operator, or to the arguments' former
      // devices.
      state.operation.callBoxed(state.stack);
    } else {
      state.operation.redispatchBoxed(
          state.keys &
              c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey),
          &state.stack);
    }
    if (state.factories != nullptr)
      state.factories->after(state.last(state.num_results()));
  }

  static void call(
      const c10::OperatorHandle& operation,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    GatedCall::State state{
        .operation = operation,
        .keys = keys,
        .stack = *stack,
        .factories = FactoryScope::innermost()};
    if (bypasses_gates) {
      pass_on(state);
      return;
    }
    const BypassGates bypass;
    const std::size_t end = stack->size();
    for (std::size_t i = end - state.num_arguments(); i < end; ++i)
      announce((*stack)[i], state.keepers);
    GatedCall(state).run();
    if (!state.is_followed || !Following::is_on()) return;
    for (const c10::IValue& value : state.last(state.num_results()))
      follow(value);
  }

  static void follow_arguments(GatedCall::State& state) {
    const auto arguments = state.last(state.num_arguments());
    const auto is_followed = [](const c10::IValue& value) {
      return value.isTensor() && is_follower(value.toTensor());
    };
    for (const c10::IValue& value : arguments) {
      if (state.is_followed) break;
      const auto items = value.isList() ? value.toListRef()
                                        : c10::ArrayRef<c10::IValue>(value);
      state.is_followed = std::ranges::any_of(items, is_followed);
    }
    if (!state.is_followed) return;
    if (const auto device = device_of_call(state.operation, arguments))
      state.has_moved = move_arguments(state.operation, arguments, *device);
  }
};

// A process can have only one fallback per dispatch key; all gates share it.
void register_gate_fallback() {
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(
        torch::CppFunction::makeFromBoxedFunction<&GateFallback::call>());
    return made;
  }();
}

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

void GatedCall::move_to(c10::Device device) {
  state_.has_device = true;
  state_.is_followed = true;
  if (move_arguments(state_.operation, arguments(), device))
    state_.has_moved = true;
}

void GatedCall::forget_keys() { state_.has_moved = true; }

void GatedCall::run() {
  if (state_.has_results)
    throw InternalError(
        "[gate] a keeper must run an operator once, but ran it twice");
  if (state_.next_keeper == state_.keepers.size()) {
    if (!state_.has_device && Following::is_on())
      GateFallback::follow_arguments(state_);
    // Gates apply to the operator that a keeper runs.
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

bool GatedCall::may_be_replaced_next() const {
  for (std::size_t i = state_.next_keeper; i < state_.keepers.size(); ++i)
    if (state_.keepers[i]->may_replace()) return true;
  return false;
}

void GatedCall::become(
    const c10::OperatorHandle& operation,
    std::span<const c10::IValue> arguments) {
  if (state_.has_results || state_.num_results() != 1 ||
      operation.schema().returns().size() != 1 ||
      operation.schema().arguments().size() != arguments.size()) {
    throw InternalError(format(
        "[gate] a keeper put {} with {} arguments in the place of {}, which "
        "has already run, or does not have exactly one result",
        operation.operator_name().name,
        arguments.size(),
        state_.operation.operator_name().name));
  }
  // `arguments` may refer to the stack.
  torch::jit::Stack others(arguments.begin(), arguments.end());
  torch::jit::drop(state_.stack, state_.num_arguments());
  for (c10::IValue& argument : others)
    torch::jit::push(state_.stack, std::move(argument));
  state_.operation = operation;
  state_.is_another = true;
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
  const GateEntry* const entry = entry_of(value);
  if (entry == nullptr || entry->keeper != &keeper) return std::nullopt;
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
  std::vector<TensorWatch> watches = take_watches(tensor);
  // variable_data() instead of detach(), since writing to the memory must not
  // bump the tensor's version.
  const at::Tensor memory = is_empty
      ? at::empty({0}, tensor.options().device(device).requires_grad(false))
      : tensor.variable_data();
  storage_ = give_gated_storage(tensor, memory);
  entry_ = std::make_unique<GateEntry>(
      GateEntry{&keeper, unit, at::Tensor(), std::move(watches)});
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
  // The tensor and its views stay watched, and still find the memory.
  entry_->keeper = nullptr;
  own_entry(storage, std::move(entry_));
}

void GatedTensor::fill(const at::Tensor& memory) {
  if (memory.nbytes() != storage_.nbytes()) {
    throw InternalError(format(
        "[gate] a tensor of {} bytes cannot be filled with memory of {} bytes",
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
