#include <accelerate/idx.h>

#include <algorithm>
#include <vector>

#include <ATen/Functions.h>

#include "data/datasets/idx_header.h"
#include "data/datasets/open_file.h"

namespace accelerate {

namespace {

at::ScalarType dtype_of(int type_code) {
  switch (type_code) {
    case 0x08:
      return at::kByte;
    case 0x09:
      return at::kChar;
    case 0x0b:
      return at::kShort;
    case 0x0c:
      return at::kInt;
    case 0x0d:
      return at::kFloat;
    default:
      return at::kDouble;
  }
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const detail::OpenFile file(path);
  std::vector<std::byte> begin(
      std::min<std::uint64_t>(file.size(), detail::kMostIdxHeaderBytes));
  file.read(0, begin);
  const detail::IdxHeader header =
      detail::parse_idx_header(begin, file.size(), path);
  const at::Tensor tensor = at::empty(
      header.sizes, at::TensorOptions().dtype(dtype_of(header.type_code)));
  auto* element = static_cast<std::byte*>(tensor.mutable_data_ptr());
  file.read(header.num_bytes, {element, header.num_elements * header.width});
  // The file's numbers begin with their highest byte.
  for (std::uint64_t i = 0; i < header.num_elements; ++i) {
    std::reverse(element, element + header.width);
    element += header.width;
  }
  return tensor;
}

}  // namespace accelerate
