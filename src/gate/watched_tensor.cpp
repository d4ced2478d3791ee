#include "gate/watched_tensor.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <accelerate/error.h>

#include "gate/gate_entry.h"
#include "gate/gate_key.h"
#include "gate/storage_access.h"

namespace accelerate::detail {

namespace {

void delete_entry(void* entry) { delete static_cast<GateEntry*>(entry); }

at::DataPtr& data_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
}

}  // namespace

void gate_deleter(void*) {}

GateEntry* entry_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kGateKey) ||
      !tensor.has_storage()) {
    return nullptr;
  }
  const at::DataPtr& data = data_of(tensor);
  if (data.get_deleter() != &gate_deleter &&
      data.get_deleter() != &delete_entry) {
    return nullptr;
  }
  return static_cast<GateEntry*>(data.get_context());
}

GateEntry* entry_of(const c10::IValue& value) {
  return value.isTensor() ? entry_of(value.toTensor()) : nullptr;
}

c10::Storage give_gated_storage(
    const at::Tensor& tensor,
    const at::Tensor& memory) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      tensor.nbytes(),
      at::DataPtr(nullptr, memory.device()),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  c10::Storage made(std::move(storage));
  auto gated = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(made),
      memory.unsafeGetTensorImpl()->key_set().add(kGateKey),
      tensor.dtype());
  gated->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  // The TensorImpl stays the same, so every handle to the parameter sees the
  // change.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(gated);
  return made;
}

void own_entry(c10::StorageImpl& storage, std::unique_ptr<GateEntry> entry) {
  void* const data = const_cast<void*>(entry->memory.const_data_ptr());
  const c10::Device device = storage.device();
  storage.set_data_ptr_noswap(
      at::DataPtr(data, entry.release(), &delete_entry, device));
}

std::vector<TensorWatch> take_watches(const at::Tensor& tensor) {
  GateEntry* const entry = entry_of(tensor);
  if (entry == nullptr || entry->keeper != nullptr) return {};
  std::vector<TensorWatch> watches = std::move(entry->watches);
  entry->watches.clear();
  const c10::impl::ExcludeDispatchKeyGuard as_usual(kGateKey);
  const at::NoGradGuard no_grad;
  // A keeper may have filled the tensor with memory of another shape.
  const at::Tensor memory = entry->memory.as_strided(
      tensor.sizes(), tensor.strides(), entry->memory.storage_offset());
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
  return watches;
}

void watch_tensor(const at::Tensor& tensor, TensorWatch watch) {
  GateEntry* const entry = entry_of(tensor);
  if (entry != nullptr) {
    entry->watches.push_back(std::move(watch));
    return;
  }
  if (!tensor.is_non_overlapping_and_dense())
    throw InternalError("[gate] a watched tensor must be dense, but is not");
  register_gate_fallback();
  auto made = std::make_unique<GateEntry>();
  // See GatedTensor's constructor.
  made->memory = tensor.variable_data();
  made->watches.push_back(std::move(watch));
  const c10::Storage storage = give_gated_storage(tensor, made->memory);
  own_entry(*storage.unsafeGetStorageImpl(), std::move(made));
}

void watch_tensor_first(const at::Tensor& tensor, TensorWatch watch) {
  watch_tensor(tensor, std::move(watch));
  std::vector<TensorWatch>& watches = entry_of(tensor)->watches;
  std::rotate(watches.begin(), watches.end() - 1, watches.end());
}

void watch_copy(const at::Tensor& copy, const at::Tensor& original) {
  const GateEntry* const entry = entry_of(original);
  if (entry == nullptr) return;
  for (const TensorWatch& watch : entry->watches) watch_tensor(copy, watch);
}

at::Tensor make_placeholder(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    TensorWatch watch,
    std::string message) {
  register_gate_fallback();
  const at::TensorOptions plain = options.requires_grad(false);
  const at::Tensor made = at::empty(sizes, plain.device(at::kMeta));
  const at::Tensor none = at::empty({0}, plain);
  const c10::Storage held = give_gated_storage(made, none);
  c10::StorageImpl& storage = *held.unsafeGetStorageImpl();
  auto entry = std::make_unique<GateEntry>();
  entry->watches.push_back(std::move(watch));
  storage.set_data_ptr_noswap(
      at::DataPtr(nullptr, entry.release(), &delete_entry, none.device()));
  make_unreadable(storage, std::move(message));
  return made;
}

void unwatch_tensor(const at::Tensor& tensor, const void* owner) {
  GateEntry* const entry = entry_of(tensor);
  if (entry == nullptr) return;
  std::erase_if(entry->watches, [owner](const TensorWatch& watch) {
    return watch.owner == owner;
  });
  if (entry->watches.empty()) static_cast<void>(take_watches(tensor));
}

at::Tensor exchange_memory(const at::Tensor& tensor, const at::Tensor& other) {
  GateEntry* const entry = entry_of(tensor);
  std::vector<TensorWatch> watches = entry != nullptr && entry->keeper
      ? std::exchange(entry->watches, {})
      : take_watches(tensor);
  const at::Tensor before = tensor.variable_data();
  tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  for (TensorWatch& watch : watches) watch_tensor(tensor, std::move(watch));
  return before;
}

const TensorWatch* find_watch(const c10::IValue& value, const void* owner) {
  const GateEntry* const entry = entry_of(value);
  if (entry == nullptr) return nullptr;
  const auto found =
      std::ranges::find(entry->watches, owner, &TensorWatch::owner);
  return found == entry->watches.end() ? nullptr : &*found;
}

bool is_watched(const at::Tensor& tensor) {
  const GateEntry* const entry = entry_of(tensor);
  return entry != nullptr && !entry->watches.empty();
}

std::size_t num_places_of(const at::Tensor& tensor) {
  const GateEntry* const entry = entry_of(tensor);
  if (entry == nullptr) return 0;
  std::size_t most = entry->keeper == nullptr ? 0 : entry->keeper->num_places();
  for (const TensorWatch& watch : entry->watches)
    most = std::max(most, watch.keeper->num_places());
  return most;
}

bool is_offloaded(const at::Tensor& tensor) {
  GateKeeper* const keeper = keeper_of(tensor);
  return keeper != nullptr && keeper->as_offload_keeper() != nullptr;
}

bool is_offloaded_or_coded(const at::Tensor& tensor) {
  GateKeeper* const keeper = keeper_of(tensor);
  return is_offloaded(tensor) ||
      (keeper != nullptr && keeper->as_coded_keeper() != nullptr);
}

bool is_behind_operators(const at::Tensor& tensor) {
  GateKeeper* const keeper = keeper_of(tensor);
  return keeper != nullptr &&
      (keeper->brings_memory() || is_offloaded_or_coded(tensor));
}

GateKeeper* keeper_of(const at::Tensor& tensor) {
  const GateEntry* const entry = entry_of(tensor);
  return entry == nullptr ? nullptr : entry->keeper;
}

}  // namespace accelerate::detail
