#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace accelerate::detail {

/// The elements of a tensor in host memory, in row-major order, whatever their
/// strides. Positions and lengths are in bytes of that order, and multiples of
/// an element. Owns nothing.
class HostMemory {
 public:
  /// An empty range.
  HostMemory() = default;
  /// A range of contiguous bytes.
  HostMemory(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  /// `strides` are in elements; 0 repeats an element, which is valid for memory
  /// that is only read.
  HostMemory(
      std::byte* data,
      std::size_t element_bytes,
      std::span<const std::int64_t> sizes,
      std::span<const std::int64_t> strides);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// The elements if they are contiguous; otherwise null.
  [[nodiscard]] std::byte* contiguous() const {
    return dims_.empty() ? data_ : nullptr;
  }

  void copy_out(std::byte* to, std::size_t begin, std::size_t bytes) const;
  void copy_in(std::size_t begin, const std::byte* from, std::size_t bytes)
      const;

 private:
  struct Dim {
    std::size_t size;
    std::ptrdiff_t stride;  ///< in bytes
  };

  template <bool kOut>
  void copy_strided(std::byte* flat, std::size_t begin, std::size_t bytes)
      const;
  template <bool kOut>
  std::size_t copy_run(
      std::byte* flat,
      std::size_t first,
      std::size_t most,
      const std::vector<std::size_t>& index,
      std::byte* at) const;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t element_bytes_ = 1;
  // Excludes dimensions of one element, and merges contiguous ones; empty if
  // all are contiguous.
  std::vector<Dim> dims_;
};

}  // namespace accelerate::detail
