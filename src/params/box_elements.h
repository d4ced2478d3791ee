#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "params/layout.h"

namespace accelerate::detail {

/// Positions of the elements of a layout's box in the global tensor, both
/// row-major. Elements have the same order in both, so the box's elements
/// within a range of the tensor form a range of the box.
class BoxElements {
 public:
  /// If `element_size` is the size of an element in bytes, everything counts
  /// bytes instead of elements.
  explicit BoxElements(const Layout& layout, std::int64_t element_size = 1);

  [[nodiscard]] std::int64_t count() const { return count_; }
  /// Number of elements of the box before element `index` of the tensor.
  [[nodiscard]] std::int64_t num_before(std::int64_t index) const;
  /// The index in the tensor of element `index` of the box.
  [[nodiscard]] std::int64_t place_of(std::int64_t index) const;

  /// Whether the box's elements [begin, end) are contiguous in the tensor.
  [[nodiscard]] bool is_run(std::int64_t begin, std::int64_t end) const {
    return begin >= end || begin / run_ == (end - 1) / run_;
  }
  /// Calls visit(first in the box, first in the tensor, count) for each run of
  /// the box's elements [begin, end) that is contiguous in the tensor.
  template <class Visit>
  void for_each_run(std::int64_t begin, std::int64_t end, Visit&& visit) const {
    while (begin < end) {
      const std::int64_t number = std::min(end - begin, run_ - begin % run_);
      visit(begin, place_of(begin), number);
      begin += number;
    }
  }

 private:
  /// The tensor's row that corresponds to a row of the box.
  [[nodiscard]] std::int64_t row_place(std::int64_t row) const;

  struct Dim {
    std::int64_t offset;
    std::int64_t extent;
    /// Elements per index, in the tensor and in the box.
    std::int64_t stride;
    std::int64_t box_stride;
  };
  /// Outermost first.
  std::vector<Dim> dims_;
  /// Layout::row_ranges, along dims_[0].
  std::vector<IndexRange> row_ranges_;
  std::int64_t count_ = 1;
  /// Elements of the box that are contiguous in the tensor.
  std::int64_t run_ = 1;
};

}  // namespace accelerate::detail
