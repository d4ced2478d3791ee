#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "big_model/tiers/units/weight_units.h"

namespace accelerate::detail {

/// A range of a file that has a tensor's bytes as LibTorch wants them, and the
/// promise that it stays as it is.
struct MappableBox {
  const StoredBox* box = nullptr;
  std::uint64_t promise = 0;
};

/// The box of a tensor that is worth mapping; null if its bytes have to be read
/// or converted, or may change.
MappableBox mappable_box(const OffloadedTensor& tensor);

/// The tensor's bytes in the page cache, which cost no copy; undefined if most
/// are not there, or have to be compared with checksums first. Changes are not
/// written.
at::Tensor map_value(const MappableBox& place, const OffloadedTensor& tensor);

/// Whether a unit's values are there without waiting for a disk: in host memory,
/// or completely in the page cache, in files that are known to be unchanged.
/// Mapping them when they are needed then costs less than having another thread
/// do it, which would take its time from the threads that compute.
bool can_fetch_at_once(const std::vector<const OffloadedTensor*>& tensors);

/// Fetches such a unit on this thread and those of LibTorch: neighbours in one
/// file are mapped together, small ones included; what is small without a large
/// neighbour is copied. Null if it is not such a unit (any more).
std::optional<FetchedUnit> fetch_at_once(
    const std::vector<const OffloadedTensor*>& tensors);

}  // namespace accelerate::detail
