#include "params/box_elements.h"

#include <numeric>

namespace accelerate::detail {

BoxElements::BoxElements(const Layout& layout, std::int64_t element_size)
    : row_ranges_(layout.row_ranges) {
  std::int64_t stride = element_size;
  count_ = element_size;
  run_ = element_size;
  bool is_in_full = true;
  for (std::size_t dim = layout.extent.size(); dim-- > 0;) {
    const std::int64_t extent = layout.extent[dim];
    dims_.push_back({layout.offset[dim], extent, stride, count_});
    stride *= layout.global_shape[dim];
    count_ *= extent;
    if (is_in_full) {
      run_ = count_;
      // Any `rows` rows starting at a multiple of `rows` lie in one range.
      if (dim == 0 && !row_ranges_.empty()) {
        std::int64_t rows = 0;
        for (const auto& [first, last] : row_ranges_)
          rows = std::gcd(rows, last - first);
        run_ = dims_.back().box_stride * rows;
      }
    }
    is_in_full = is_in_full && extent == layout.global_shape[dim];
  }
  std::ranges::reverse(dims_);
}

std::int64_t BoxElements::num_before(std::int64_t index) const {
  if (count_ == 0) return 0;
  std::int64_t number = 0;
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    const Dim& dim = dims_[i];
    if (i == 0 && !row_ranges_.empty()) {
      const std::int64_t row = index / dim.stride;
      bool is_inside = false;
      for (const auto& [first, last] : row_ranges_) {
        is_inside = is_inside || (row >= first && row < last);
        number += std::clamp<std::int64_t>(row - first, 0, last - first) *
            dim.box_stride;
      }
      if (!is_inside) return number;
      index %= dim.stride;
      continue;
    }
    const std::int64_t inside = index / dim.stride - dim.offset;
    if (inside < 0) return number;
    if (inside >= dim.extent) return number + dim.extent * dim.box_stride;
    number += inside * dim.box_stride;
    index %= dim.stride;
  }
  // The remainder lies within one element.
  return number + index;
}

std::int64_t BoxElements::place_of(std::int64_t index) const {
  std::int64_t place = 0;
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    const Dim& dim = dims_[i];
    const std::int64_t inside = index / dim.box_stride;
    const bool has_ranges = i == 0 && !row_ranges_.empty();
    place +=
        (has_ranges ? row_place(inside) : inside + dim.offset) * dim.stride;
    index %= dim.box_stride;
  }
  return place + index;
}

std::int64_t BoxElements::row_place(std::int64_t row) const {
  for (const auto& [first, last] : row_ranges_) {
    if (row < last - first) return first + row;
    row -= last - first;
  }
  // One past the end.
  return row_ranges_.back().second + row;
}

}  // namespace accelerate::detail
