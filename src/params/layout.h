#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/parallel.h>

namespace accelerate::detail {

/// The shard of a global tensor that this rank holds: a box, and the mesh axes
/// over which the tensor is split. Unsharded: offset 0, extent the full shape.
struct Layout {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> extent;
  std::vector<Axis> split_axes;

  /// The full tensor, on every rank.
  static Layout unsharded(std::vector<std::int64_t> shape);

  /// Splits this rank's box along `dim` over the ranks of `axis`: this rank
  /// keeps `count` indices from `begin` on, counted within the box. A tensor
  /// may be split several times, also along one dimension.
  void
  split(Axis axis, std::int64_t dim, std::int64_t begin, std::int64_t count);

  [[nodiscard]] bool is_unsharded() const { return split_axes.empty(); }
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// The writer rule: of the ranks that hold the same box, the one whose
/// coordinate is 0 on every axis that the tensor is not split over saves it.
bool is_writer(const Layout& layout, const Mesh& mesh);
/// As above, for a rank at `coordinates` of a mesh, one per axis.
bool is_writer(
    const Layout& layout,
    const std::array<int, kNumAxes>& coordinates);

/// The ranks that hold the same box as this one, in world order. The first is
/// the writer, and the one whose initial values all get. Collective the first
/// time, as Mesh::group() is.
Group replica_group(const Layout& layout, const Mesh& mesh);

}  // namespace accelerate::detail
