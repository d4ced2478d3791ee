#include "params/layout.h"

#include <algorithm>

namespace accelerate::detail {

namespace {

// Whether ranks that differ along `axis` hold different boxes. Pipeline stages
// always do, since they hold different parameters.
bool has_other_boxes(const Layout& layout, Axis axis) {
  return axis == Axis::pipeline || layout.is_split_over(axis);
}

// Appends the ranges of the tensor that correspond to rows [first, last) of the
// box, merging adjacent ranges.
void add_rows(
    const Layout& layout,
    std::int64_t first,
    std::int64_t last,
    std::vector<IndexRange>& ranges) {
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    if (!ranges.empty() && ranges.back().second == begin) {
      ranges.back().second = end;
    } else {
      ranges.emplace_back(begin, end);
    }
  };
  if (layout.row_ranges.empty())
    return add(layout.offset[0] + first, layout.offset[0] + last);
  std::int64_t before = 0;
  for (const auto& [begin, end] : layout.row_ranges) {
    const std::int64_t from = std::max<std::int64_t>(first - before, 0);
    const std::int64_t to = std::min(last - before, end - begin);
    add(begin + from, begin + to);
    before += end - begin;
  }
}

}  // namespace

Layout Layout::unsharded(std::vector<std::int64_t> shape) {
  Layout layout;
  layout.offset.assign(shape.size(), 0);
  layout.extent = shape;
  layout.global_shape = std::move(shape);
  return layout;
}

void Layout::split(
    Axis axis,
    std::int64_t dim,
    std::int64_t begin,
    std::int64_t count) {
  if (dim == 0 && !row_ranges.empty())
    return split_rows(axis, {{begin, begin + count}});
  const auto place = static_cast<std::size_t>(dim);
  offset[place] += begin;
  extent[place] = count;
  split_axes.push_back(axis);
}

bool Layout::is_split_over(Axis axis) const {
  return std::ranges::find(split_axes, axis) != split_axes.end();
}

Mesh placement_mesh(const Layout& layout, const Mesh& mesh) {
  return layout.is_split_over(Axis::expert) ? mesh.experts() : mesh;
}

void Layout::split_rows(Axis axis, const std::vector<IndexRange>& ranges) {
  std::vector<IndexRange> kept;
  std::int64_t count = 0;
  for (const auto& [first, last] : ranges) {
    count += last - first;
    add_rows(*this, first, last, kept);
  }
  // Without rows, it is an empty box at an arbitrary offset.
  if (!kept.empty()) offset[0] = kept.front().first;
  extent[0] = count;
  row_ranges.clear();
  if (kept.size() > 1) row_ranges = std::move(kept);
  split_axes.push_back(axis);
}

std::vector<LayoutPiece> pieces_of(const Layout& layout) {
  if (layout.row_ranges.empty())
    return {{layout, 0, layout.extent.empty() ? 1 : layout.extent[0]}};
  std::vector<LayoutPiece> pieces;
  std::int64_t first_row = 0;
  for (const auto& [first, last] : layout.row_ranges) {
    LayoutPiece piece{layout, first_row, last - first};
    piece.layout.row_ranges.clear();
    piece.layout.offset[0] = first;
    piece.layout.extent[0] = last - first;
    pieces.push_back(std::move(piece));
    first_row += last - first;
  }
  return pieces;
}

at::Tensor rows_of(const at::Tensor& tensor, const LayoutPiece& piece) {
  const bool is_all = tensor.dim() == 0 || piece.num_rows == tensor.size(0);
  return is_all ? tensor : tensor.narrow(0, piece.first_row, piece.num_rows);
}

void append_box(std::vector<std::int64_t>& numbers, const Layout& layout) {
  const auto append = [&](const std::vector<std::int64_t>& values) {
    numbers.insert(numbers.end(), values.begin(), values.end());
  };
  append(layout.offset);
  append(layout.extent);
  numbers.push_back(static_cast<std::int64_t>(layout.row_ranges.size()));
  for (const auto& [first, last] : layout.row_ranges) append({first, last});
}

Layout take_box(const Layout& like, std::span<const std::int64_t>& numbers) {
  const auto take = [&](std::size_t count) {
    const auto front = numbers.first(count);
    numbers = numbers.subspan(count);
    return std::vector<std::int64_t>(front.begin(), front.end());
  };
  Layout layout = like;
  layout.offset = take(like.global_shape.size());
  layout.extent = take(like.global_shape.size());
  layout.row_ranges.clear();
  for (std::int64_t left = take(1).front(); left > 0; --left) {
    const std::vector<std::int64_t> range = take(2);
    layout.row_ranges.emplace_back(range[0], range[1]);
  }
  return layout;
}

bool is_writer(
    const Layout& layout,
    const std::array<int, kNumAxes>& coordinates) {
  for (int i = 0; i < kNumAxes; ++i) {
    if (!has_other_boxes(layout, static_cast<Axis>(i)) &&
        coordinates[static_cast<std::size_t>(i)] != 0)
      return false;
  }
  return true;
}

bool is_writer(const Layout& layout, const Mesh& mesh) {
  const Mesh own = placement_mesh(layout, mesh);
  std::array<int, kNumAxes> coordinates{};
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    // Only tensors split over `expert` have a coordinate along it.
    const bool is_placed =
        axis != Axis::expert || layout.is_split_over(Axis::expert);
    coordinates[static_cast<std::size_t>(i)] =
        is_placed ? own.coordinate(axis) : 0;
  }
  return is_writer(layout, coordinates);
}

Group replica_group(const Layout& layout, const Mesh& mesh) {
  std::vector<Axis> axes;
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (axis != Axis::expert && !has_other_boxes(layout, axis))
      axes.push_back(axis);
  }
  return placement_mesh(layout, mesh).group(axes);
}

}  // namespace accelerate::detail
