#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/parallel.h>

namespace accelerate::detail {

/// Indices [first, second).
using IndexRange = std::pair<std::int64_t, std::int64_t>;

/// The shard of a global tensor that this rank holds: a box, and the mesh axes
/// over which the tensor is split. Unsharded: offset 0, extent the full shape.
/// The axes of a tensor that is split over `expert` are those of
/// Mesh::experts().
///
/// Along dimension 0, the box may consist of several ranges of the tensor's
/// rows, one after another: a rank's attention heads in a matrix of queries,
/// keys and values, for example.
struct Layout {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> extent;
  std::vector<Axis> split_axes;
  /// The ranges of the tensor's rows, ascending, if there are several; offset
  /// is then the first range's, extent the sum. Empty: one box.
  std::vector<IndexRange> row_ranges = {};

  /// The full tensor, on every rank.
  static Layout unsharded(std::vector<std::int64_t> shape);

  /// Splits this rank's box along `dim` over the ranks of `axis`: this rank
  /// keeps `count` indices starting at `begin`, counted within the box. A
  /// tensor may be split several times, even along one dimension.
  void
  split(Axis axis, std::int64_t dim, std::int64_t begin, std::int64_t count);
  /// Splits along dimension 0, where this rank keeps ascending ranges, counted
  /// within the box.
  void split_rows(Axis axis, const std::vector<IndexRange>& ranges);

  [[nodiscard]] bool is_unsharded() const { return split_axes.empty(); }
  [[nodiscard]] bool is_split_over(Axis axis) const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// The mesh to which the layout's axes belong: `mesh`, or its experts().
Mesh placement_mesh(const Layout& layout, const Mesh& mesh);

/// A part of a layout's box that is itself one box of the tensor.
struct LayoutPiece {
  Layout layout;
  /// The piece's first row in the box, and its number of rows: all of them if
  /// the box is in one piece.
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
};

/// The pieces, in row order.
std::vector<LayoutPiece> pieces_of(const Layout& layout);
/// The piece's rows of a tensor that holds the layout's box.
at::Tensor rows_of(const at::Tensor& tensor, const LayoutPiece& piece);

/// Converts a layout's box to numbers, for other ranks, and back: appends to
/// `numbers`, and takes from their front. `like` is a layout of the same
/// tensor.
void append_box(std::vector<std::int64_t>& numbers, const Layout& layout);
Layout take_box(const Layout& like, std::span<const std::int64_t>& numbers);

/// The writer rule: among the ranks that hold the same box, the rank whose
/// coordinate is 0 on every axis over which the tensor is not split saves it.
bool is_writer(const Layout& layout, const Mesh& mesh);
/// Whether a rank is the writer at `coordinates` in the layout's mesh, one per
/// axis.
bool is_writer(
    const Layout& layout,
    const std::array<int, kNumAxes>& coordinates);

/// The ranks that hold the same box as this one, in world order. The first is
/// the writer, and provides the initial values for all. Collective on first
/// use, as Mesh::group() is.
Group replica_group(const Layout& layout, const Mesh& mesh);

}  // namespace accelerate::detail
