#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace accelerate::detail {

/// Host memory of tensors that were evicted, for the next ones. Thread-safe if
/// its calls are under one lock.
class BufferPool {
 public:
  /// With `is_pinned`, of memory from which devices copy without a detour, where
  /// there is such memory.
  explicit BufferPool(bool is_pinned) : is_pinned_(is_pinned) {}

  /// Memory for at least so many bytes, as a tensor of bytes.
  at::Tensor take(std::uint64_t num_bytes);
  /// Takes memory back, to be used again once nobody holds it. Something copies
  /// from it until `last_use`, if that is not null.
  void give_back(
      at::Tensor buffer,
      std::shared_ptr<c10::Event> last_use = nullptr);
  /// Frees memory until so much is left.
  void trim(std::uint64_t num_bytes);
  void clear() { buffers_.clear(); }

 private:
  struct Buffer {
    at::Tensor memory;
    std::shared_ptr<c10::Event> last_use;
  };

  at::Tensor make(std::int64_t num_bytes) const;

  bool is_pinned_;
  /// The one that was given back first comes first.
  std::vector<Buffer> buffers_;
};

}  // namespace accelerate::detail
