#include "format/tensors/box_cover.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using safetensors::Box;
using safetensors::Shape;

// Interlocked boxes are cut repeatedly, until this many pieces per box and
// dimension have been examined. Boxes in rows, columns or a grid take only the
// logarithm of their number.
constexpr std::uint64_t kMostPiecesPerBox = 64;
// This many boxes are compared in pairs.
constexpr std::size_t kFewBoxes = 16;

bool overlap(const Box& a, const Box& b) {
  for (std::size_t i = 0; i < a.begin.size(); ++i) {
    if (a.begin[i] + a.size[i] <= b.begin[i] ||
        b.begin[i] + b.size[i] <= a.begin[i]) {
      return false;
    }
  }
  return true;
}

// Searches for two boxes that overlap: repeatedly cuts space in two at the
// bounds of boxes, until few boxes are left in each cell.
class OverlapSearch {
 public:
  enum class Answer { disjoint, overlap, too_long };

  /// `boxes` have elements, and the same number of dimensions, at least one.
  explicit OverlapSearch(std::vector<const Box*> boxes)
      : boxes_(std::move(boxes)) {}

  Answer run(const Shape& shape) {
    const std::size_t num_dims = shape.size();
    pieces_left_ = kMostPiecesPerBox * boxes_.size() * num_dims;
    Cell cell{boxes_, Shape(num_dims, 0), shape, {}};
    for (std::size_t i = 0; i < num_dims; ++i) cell.dims.push_back(i);
    return search(std::move(cell));
  }

 private:
  struct Cell {
    /// The boxes with elements in the cell.
    std::vector<const Box*> boxes;
    Shape begin;
    Shape end;
    /// Dimensions in which a box may begin or end inside the cell.
    std::vector<std::size_t> dims;
  };

  struct Cut {
    std::size_t dim = 0;
    std::uint64_t at = 0;
    /// Number of boxes in the half with more of them.
    std::size_t num_boxes = 0;
  };

  // The median of the bounds inside the cell, in one dimension.
  static std::optional<Cut> cut_along(const Cell& cell, std::size_t dim) {
    std::vector<std::uint64_t> bounds;
    for (const Box* box : cell.boxes) {
      const std::uint64_t begin = box->begin[dim];
      const std::uint64_t end = begin + box->size[dim];
      if (begin > cell.begin[dim]) bounds.push_back(begin);
      if (end < cell.end[dim]) bounds.push_back(end);
    }
    if (bounds.empty()) return std::nullopt;
    const auto middle =
        bounds.begin() + static_cast<std::ptrdiff_t>(bounds.size() / 2);
    std::nth_element(bounds.begin(), middle, bounds.end());
    Cut cut{dim, *middle, 0};
    std::size_t num_before = 0;
    std::size_t num_after = 0;
    for (const Box* box : cell.boxes) {
      num_before += box->begin[dim] < cut.at ? 1 : 0;
      num_after += box->begin[dim] + box->size[dim] > cut.at ? 1 : 0;
    }
    cut.num_boxes = std::max(num_before, num_after);
    return cut;
  }

  static bool any_two_overlap(const std::vector<const Box*>& boxes) {
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      for (std::size_t j = i + 1; j < boxes.size(); ++j) {
        if (overlap(*boxes[i], *boxes[j])) return true;
      }
    }
    return false;
  }

  Answer search(Cell cell) {
    if (cell.boxes.size() <= kFewBoxes) {
      return any_two_overlap(cell.boxes) ? Answer::overlap : Answer::disjoint;
    }
    const std::uint64_t num_pieces = cell.boxes.size() * cell.dims.size();
    if (num_pieces > pieces_left_) return Answer::too_long;
    pieces_left_ -= num_pieces;
    std::optional<Cut> best;
    std::vector<std::size_t> dims;
    for (const std::size_t dim : cell.dims) {
      const auto cut = cut_along(cell, dim);
      if (!cut) continue;
      dims.push_back(dim);
      if (!best || cut->num_boxes < best->num_boxes) best = cut;
    }
    // All boxes fill the cell.
    if (!best) return Answer::overlap;
    cell.dims = std::move(dims);
    Cell after = cell;
    after.begin[best->dim] = best->at;
    std::erase_if(after.boxes, [&](const Box* box) {
      return box->begin[best->dim] + box->size[best->dim] <= best->at;
    });
    cell.end[best->dim] = best->at;
    std::erase_if(cell.boxes, [&](const Box* box) {
      return box->begin[best->dim] >= best->at;
    });
    const Answer answer = search(std::move(cell));
    return answer == Answer::disjoint ? search(std::move(after)) : answer;
  }

  std::vector<const Box*> boxes_;
  std::uint64_t pieces_left_ = 0;
};

std::uint64_t volume_of(const Shape& sizes) {
  std::uint64_t volume = 1;
  for (const std::uint64_t size : sizes) volume *= size;
  return volume;
}

bool is_inside(const Box& box, const Shape& shape) {
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (box.begin[i] > shape[i] || box.size[i] > shape[i] - box.begin[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::string> complaint_of_boxes(
    const Shape& shape,
    const std::vector<const Box*>& boxes,
    bool must_cover) {
  const std::uint64_t all = volume_of(shape);
  std::uint64_t covered = 0;
  std::vector<const Box*> filled;
  for (const Box* box : boxes) {
    if (box->begin.size() != shape.size() || box->size.size() != shape.size()) {
      return "a box and its tensor have different numbers of dimensions";
    }
    if (!is_inside(*box, shape)) return "a box is not inside its tensor";
    const std::uint64_t volume = volume_of(box->size);
    if (volume > all - covered) return "boxes of a tensor overlap";
    covered += volume;
    if (volume > 0) filled.push_back(box);
  }
  if (must_cover && covered != all) {
    return "the boxes of a tensor do not cover it";
  }
  // Two boxes of a scalar have more elements than the scalar.
  if (filled.size() < 2) return std::nullopt;
  const std::size_t num_boxes = filled.size();
  switch (OverlapSearch(std::move(filled)).run(shape)) {
    case OverlapSearch::Answer::overlap:
      return "boxes of a tensor overlap";
    case OverlapSearch::Answer::too_long:
      return format(
          "the {} boxes of a tensor interlock in a way that takes more than {} "
          "comparisons for each to check",
          num_boxes,
          kMostPiecesPerBox);
    case OverlapSearch::Answer::disjoint:
      break;
  }
  return std::nullopt;
}

}  // namespace accelerate::detail
