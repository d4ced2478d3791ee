#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include "gate/watched_tensor.h"

namespace accelerate::detail {

/// What the storage of a tensor behind a gate leads to.
struct GateEntry {
  /// Keeps the memory; null if the tensor is only watched, or has no keeper any
  /// more.
  GateKeeper* keeper = nullptr;
  std::size_t unit = 0;
  /// Owns the memory; undefined if there is none.
  at::Tensor memory;
  /// Called before the keeper, the first one first.
  std::vector<TensorWatch> watches;
};

/// The deleter that identifies storages whose entry somebody else owns. It has
/// nothing to delete.
void gate_deleter(void* entry);

/// The entry of a tensor, or of the tensor that it is a view of; null if it is
/// not behind a gate.
GateEntry* entry_of(const c10::IValue& value);
GateEntry* entry_of(const at::Tensor& tensor);

/// Gives `tensor` a storage of its own and the gate's key. The storage is as
/// large as before and on the device of `memory`, and has no memory yet.
c10::Storage give_gated_storage(
    const at::Tensor& tensor,
    const at::Tensor& memory);

/// Leaves an entry with memory to the storage, which deletes it in the end.
void own_entry(c10::StorageImpl& storage, std::unique_ptr<GateEntry> entry);

/// Ends all watches of a tensor that has no keeper, whose memory and key are
/// then as before them, and returns them.
std::vector<TensorWatch> take_watches(const at::Tensor& tensor);

}  // namespace accelerate::detail
