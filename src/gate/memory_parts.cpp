#include "gate/memory_parts.h"

#include <algorithm>
#include <cstddef>

#include "gate/watched_tensor.h"

namespace accelerate::detail {

std::vector<std::vector<at::Tensor>> memory_parts(
    const std::vector<at::Tensor>& tensors) {
  constexpr std::size_t kPartBytes = std::size_t{32} << 20U;
  if (std::ranges::none_of(tensors, &is_behind_operators)) return {tensors};
  std::vector<std::vector<at::Tensor>> parts(1);
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!parts.back().empty() && bytes + tensor.nbytes() > kPartBytes) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(tensor);
    bytes += tensor.nbytes();
  }
  return parts;
}

}  // namespace accelerate::detail
