#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include "gate/watched_tensor.h"

namespace accelerate::detail {

/// The gate's data, found through the storage of a gated tensor.
struct GateEntry {
  /// Keeps the memory; null if the tensor is only watched, or no longer has a
  /// keeper.
  GateKeeper* keeper = nullptr;
  std::size_t unit = 0;
  /// Owns the memory; undefined if there is none.
  at::Tensor memory;
  /// Called before the keeper, in order.
  std::vector<TensorWatch> watches;
};

/// The deleter that identifies storages that do not own their entry. It deletes
/// nothing.
void gate_deleter(void* entry);

/// Returns the entry of a tensor, or of the tensor that it is a view of; null
/// if it is not behind a gate.
GateEntry* entry_of(const c10::IValue& value);
GateEntry* entry_of(const at::Tensor& tensor);

/// Gives `tensor` a storage of its own and the gate's key. The storage has the
/// same size as before, is on the device of `memory`, and has no memory yet.
c10::Storage give_gated_storage(
    const at::Tensor& tensor,
    const at::Tensor& memory);

/// Transfers an entry with memory to the storage, which deletes it when
/// destroyed.
void own_entry(c10::StorageImpl& storage, std::unique_ptr<GateEntry> entry);

/// Ends and returns all watches of a tensor that has no keeper, restoring its
/// original memory and key.
std::vector<TensorWatch> take_watches(const at::Tensor& tensor);

}  // namespace accelerate::detail
