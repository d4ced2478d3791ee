#include "params/layout.h"

#include <algorithm>
#include <utility>

namespace accelerate::detail {

Layout Layout::whole(std::vector<std::int64_t> shape) {
  Layout layout;
  layout.offset.assign(shape.size(), 0);
  layout.extent = shape;
  layout.global_shape = std::move(shape);
  return layout;
}

bool is_writer(const Layout& layout, const Mesh& mesh) {
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    // Stages hold different parameters altogether, so each writes its own.
    if (axis == Axis::pipeline) continue;
    const bool is_split =
        std::find(layout.split_axes.begin(), layout.split_axes.end(), axis) !=
        layout.split_axes.end();
    if (!is_split && mesh.coordinate(axis) != 0) return false;
  }
  return true;
}

}  // namespace accelerate::detail
