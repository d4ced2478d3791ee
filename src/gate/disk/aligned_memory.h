#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace accelerate::detail {

/// Memory that files can be read into directly. Blocks are kept for later use
/// by size: the tensors of a training step have the same sizes in each step.
/// Not thread-safe.
class AlignedMemory {
 public:
  /// `device`: what copies from the memory without waiting; the CPU: nothing.
  /// Free blocks are kept as long as all blocks have at most `most_bytes`.
  AlignedMemory(c10::Device device, std::uint64_t most_bytes)
      : device_(device), most_bytes_(most_bytes) {}

  /// Returns a flat tensor of bytes, a multiple of ScratchFile::kAlignment.
  [[nodiscard]] at::Tensor take(std::uint64_t bytes);
  /// Takes back what nothing else refers to.
  void give(at::Tensor block);

  /// Bytes of all blocks, in use or free.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t bytes_in_use() const { return bytes_in_use_; }
  [[nodiscard]] std::uint64_t most_in_use() const { return most_in_use_; }

 private:
  [[nodiscard]] at::Tensor make(std::uint64_t bytes) const;
  void drop_free_blocks(std::uint64_t limit);

  c10::Device device_;
  std::uint64_t most_bytes_;
  std::uint64_t bytes_ = 0;
  std::uint64_t bytes_in_use_ = 0;
  std::uint64_t most_in_use_ = 0;
  std::map<std::uint64_t, std::vector<at::Tensor>> free_;
};

}  // namespace accelerate::detail
