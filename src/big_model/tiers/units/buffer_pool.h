#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace accelerate::detail {

/// Recycles the host memory of evicted tensors. The caller must serialize calls
/// with a lock.
class BufferPool {
 public:
  /// With `is_pinned`, allocates pinned memory where it is available.
  explicit BufferPool(bool is_pinned) : is_pinned_(is_pinned) {}

  /// Returns memory for at least `num_bytes`, as a tensor of bytes.
  at::Tensor take(std::uint64_t num_bytes);
  /// Returns memory to the pool, which reuses it once no other tensor shares
  /// its storage. If `last_use` is not null, a copy reads from the memory until
  /// that event.
  void give_back(
      at::Tensor buffer,
      std::shared_ptr<c10::Event> last_use = nullptr);
  /// Frees unused buffers until at most `num_bytes` are left.
  void trim(std::uint64_t num_bytes);
  void clear() { buffers_.clear(); }

 private:
  struct Buffer {
    at::Tensor memory;
    std::shared_ptr<c10::Event> last_use;
  };

  at::Tensor make(std::int64_t num_bytes) const;

  bool is_pinned_;
  /// In the order in which they were returned, oldest first.
  std::vector<Buffer> buffers_;
};

}  // namespace accelerate::detail
