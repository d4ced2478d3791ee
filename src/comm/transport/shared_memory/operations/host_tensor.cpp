#include "comm/transport/shared_memory/operations/collectives.h"

#include <algorithm>

namespace accelerate::detail {

HostTensor::HostTensor(
    std::byte* data,
    at::ScalarType element_type,
    std::span<const std::int64_t> extents,
    std::span<const std::int64_t> strides)
    : memory(data, c10::elementSize(element_type), extents, strides),
      dtype(element_type),
      num_dims(static_cast<std::uint8_t>(
          std::min<std::size_t>(extents.size(), CollectiveStamp::kMostDims))) {
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (i < num_dims) {
      sizes[i] = extents[i];
    } else {
      sizes[num_dims - 1U] *= extents[i];
    }
  }
}

CollectiveStamp HostTensor::stamp(CollectiveKind kind, int root) const {
  return {
      .bytes = memory.bytes(),
      .root = root,
      .kind = static_cast<std::uint8_t>(kind),
      .dtype = static_cast<std::uint8_t>(dtype),
      .num_dims = num_dims,
      .sizes = sizes};
}

}  // namespace accelerate::detail
