#pragma once

#include <cstdint>
#include <utility>

#include "big_model/tiers/units/first_contents.h"
#include "big_model/tiers/units/weight_units.h"

namespace accelerate::detail {

/// Calls `visit` with each file of a tensor.
template <class Visit>
void for_each_file(const OffloadedTensor& tensor, Visit&& visit) {
  if (tensor.source.stored == nullptr) return;
  const InputFile* last = nullptr;
  for (const StoredBox& box : tensor.source.stored->boxes) {
    if (box.file.get() != std::exchange(last, box.file.get())) visit(*box.file);
  }
}

/// Bytes of a tensor in its files; 0 for a tensor of the host tier.
std::uint64_t stored_bytes(const OffloadedTensor& tensor);

/// Current versions of a tensor's files.
FirstContents::Versions versions_of(const OffloadedTensor& tensor);

}  // namespace accelerate::detail
