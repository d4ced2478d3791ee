#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/transport/shared_memory/memory/fabric.h"

namespace accelerate::detail {

inline constexpr std::size_t kSlotBytes = SegmentLayout::kSlotBytes;

inline std::size_t index_of(int rank) { return static_cast<std::size_t>(rank); }

/// The bytes of one step, or of one rank's part of it.
struct Piece {
  std::size_t begin = 0;
  std::size_t size = 0;
};

/// Piece number `index` of `total` bytes in pieces of `each`; empty beyond.
inline Piece
piece_of(std::uint64_t index, std::size_t each, std::size_t total) {
  const std::size_t begin =
      std::min(static_cast<std::size_t>(index) * each, total);
  return {.begin = begin, .size = std::min(each, total - begin)};
}

/// Number of pieces, at least one.
inline std::uint64_t num_pieces(std::size_t total, std::size_t each) {
  return std::max<std::size_t>((total + each - 1) / each, 1);
}

/// Bytes per step for each other rank if all share a slot.
inline std::size_t share_of_slot(const Fabric& fabric) {
  return kSlotBytes / (index_of(fabric.size()) - 1) / kCacheLine * kCacheLine;
}

/// Offset in the slot of `from` of the bytes meant for `to`.
inline std::size_t place_in_slot(const Fabric& fabric, int from, int to) {
  return index_of(to < from ? to : to - 1) * share_of_slot(fabric);
}

}  // namespace accelerate::detail
