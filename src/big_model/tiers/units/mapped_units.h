#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "big_model/tiers/units/weight_units.h"

namespace accelerate::detail {

/// A file range that holds a tensor's bytes in LibTorch's layout, and the
/// promise that the range does not change.
struct MappableBox {
  const StoredBox* box = nullptr;
  std::uint64_t promise = 0;
};

/// Returns the box of a tensor that is worth mapping. Null if the tensor is too
/// small or must be read or converted; a promise of 0 if the file may change.
MappableBox mappable_box(const OffloadedTensor& tensor);

/// Maps the tensor's bytes from the page cache, without a copy. Undefined if
/// most are not cached or must be compared with checksums first. Writes do not
/// reach the file.
at::Tensor map_value(const MappableBox& place, const OffloadedTensor& tensor);

/// Whether a unit's values can be used without waiting for a disk: they are in
/// host memory, or entirely in the page cache and in files known to be
/// unchanged. Mapping them on demand is then cheaper than on another thread,
/// which would compete with the threads that compute.
bool can_fetch_at_once(const std::vector<const OffloadedTensor*>& tensors);

/// Fetches a unit for which can_fetch_at_once() is true, on this thread and
/// LibTorch's intra-op threads. Neighbouring tensors in a file are mapped
/// together, small ones included; small tensors without large neighbours are
/// copied. Null if the unit cannot be fetched at once, or no longer.
std::optional<FetchedUnit> fetch_at_once(
    const std::vector<const OffloadedTensor*>& tensors);

}  // namespace accelerate::detail
