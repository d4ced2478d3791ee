#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Keeps memory of a few recurring sizes between uses: otherwise the system
/// would map and clear pages each time, and the heap would fragment. Not
/// thread-safe.
class BlockPool {
 public:
  void keep_up_to(std::int64_t max_bytes) { max_bytes_ = max_bytes; }

  /// Returns a dense, uninitialised tensor.
  at::Tensor take(at::IntArrayRef sizes, const at::TensorOptions& options) {
    const auto place = blocks_.find(bytes_of(sizes, options));
    if (place == blocks_.end() || place->second.empty())
      return at::empty(sizes, options);
    const at::Tensor block = place->second.back();
    place->second.pop_back();
    kept_bytes_ -= place->first;
    return block.view(options.dtype().toScalarType()).view(sizes);
  }

  /// Takes memory back. Does not keep memory that is still referenced or
  /// exceeds the limit.
  void give(at::Tensor memory) {
    if (memory.storage().use_count() > 1) return;
    const auto bytes = static_cast<std::int64_t>(memory.nbytes());
    if (bytes == 0 || kept_bytes_ + bytes > max_bytes_) return;
    kept_bytes_ += bytes;
    blocks_[bytes].push_back(memory.view(-1).view(at::kByte));
  }

 private:
  static std::int64_t bytes_of(
      at::IntArrayRef sizes,
      const at::TensorOptions& options) {
    std::int64_t bytes = static_cast<std::int64_t>(options.dtype().itemsize());
    for (const std::int64_t size : sizes) bytes *= size;
    return bytes;
  }

  std::int64_t max_bytes_ = 0;
  std::int64_t kept_bytes_ = 0;
  std::map<std::int64_t, std::vector<at::Tensor>> blocks_;
};

}  // namespace accelerate::detail
