#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/parallel.h>

namespace accelerate::detail {

/// Which part of a global tensor this rank holds: a box, and the mesh axes
/// over which the tensor is split. Not split: offset 0, extent the whole shape.
struct ACCELERATE_API Layout {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> extent;
  std::vector<Axis> split_axes;

  /// The whole tensor, on every rank.
  static Layout whole(std::vector<std::int64_t> shape);

  [[nodiscard]] bool is_whole() const { return split_axes.empty(); }
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Writer rule: of the ranks that hold the same box, the one whose coordinate
/// is 0 on every axis that the tensor is not split over saves it.
ACCELERATE_API bool is_writer(const Layout& layout, const Mesh& mesh);

}  // namespace accelerate::detail
