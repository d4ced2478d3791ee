#include "params/box_elements.h"

namespace accelerate::detail {

BoxElements::BoxElements(const Layout& layout, std::int64_t element_size) {
  std::int64_t stride = element_size;
  count_ = element_size;
  run_ = element_size;
  bool is_in_full = true;
  for (std::size_t dim = layout.extent.size(); dim-- > 0;) {
    const std::int64_t extent = layout.extent[dim];
    dims_.push_back({layout.offset[dim], extent, stride, count_});
    stride *= layout.global_shape[dim];
    count_ *= extent;
    if (is_in_full) run_ = count_;
    is_in_full = is_in_full && extent == layout.global_shape[dim];
  }
  std::reverse(dims_.begin(), dims_.end());
}

std::int64_t BoxElements::num_before(std::int64_t index) const {
  if (count_ == 0) return 0;
  std::int64_t number = 0;
  for (const Dim& dim : dims_) {
    const std::int64_t inside = index / dim.stride - dim.offset;
    if (inside < 0) return number;
    if (inside >= dim.extent) return number + dim.extent * dim.box_stride;
    number += inside * dim.box_stride;
    index %= dim.stride;
  }
  // The remainder is inside one element.
  return number + index;
}

std::int64_t BoxElements::place_of(std::int64_t index) const {
  std::int64_t place = 0;
  for (const Dim& dim : dims_) {
    place += (index / dim.box_stride + dim.offset) * dim.stride;
    index %= dim.box_stride;
  }
  return place + index;
}

}  // namespace accelerate::detail
