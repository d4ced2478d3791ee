#pragma once

#include <cstddef>
#include <span>

#include <accelerate/safetensors.h>

namespace accelerate::detail {

/// Operations that torch defers until a view is read; the storage has the
/// values before them.
struct HiddenBits {
  bool is_conjugate = false;
  bool is_negative = false;

  [[nodiscard]] bool any() const { return is_conjugate || is_negative; }
  auto operator<=>(const HiddenBits&) const = default;
};

/// Whether elements of the dtype have negatives (truth values have none).
bool has_negatives(safetensors::Dtype dtype);

/// Applies the operations to elements. `bytes` are full elements of the dtype,
/// which has_negatives() if they are to be negated.
void resolve(
    HiddenBits bits,
    safetensors::Dtype dtype,
    std::span<std::byte> bytes);

}  // namespace accelerate::detail
