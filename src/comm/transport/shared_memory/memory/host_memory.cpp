#include "comm/transport/shared_memory/memory/host_memory.h"

#include <algorithm>
#include <cstring>

namespace accelerate::detail {

namespace {

// Number of rows and columns copied together for a transposed tensor: enough
// columns to fill a cache line of the strided side.
constexpr std::size_t kTile = 16;

// One side of the copy is contiguous, the other strided; kOut copies to the
// contiguous one.
template <bool kOut, std::size_t kBytes>
void copy_elements(
    std::byte* flat,
    std::byte* strided,
    std::ptrdiff_t stride,
    std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (kOut) {
      std::memcpy(flat, strided, kBytes);
    } else {
      std::memcpy(strided, flat, kBytes);
    }
    flat += kBytes;
    strided += stride;
  }
}

template <bool kOut>
void copy_row(
    std::byte* flat,
    std::byte* strided,
    std::ptrdiff_t stride,
    std::size_t count,
    std::size_t element_bytes) {
  if (stride == static_cast<std::ptrdiff_t>(element_bytes)) {
    if constexpr (kOut) {
      std::memcpy(flat, strided, count * element_bytes);
    } else {
      std::memcpy(strided, flat, count * element_bytes);
    }
    return;
  }
  switch (element_bytes) {
    case 1:
      return copy_elements<kOut, 1>(flat, strided, stride, count);
    case 2:
      return copy_elements<kOut, 2>(flat, strided, stride, count);
    case 4:
      return copy_elements<kOut, 4>(flat, strided, stride, count);
    case 8:
      return copy_elements<kOut, 8>(flat, strided, stride, count);
    default:
      return copy_elements<kOut, 16>(flat, strided, stride, count);
  }
}

}  // namespace

HostMemory::HostMemory(
    std::byte* data,
    std::size_t element_bytes,
    std::span<const std::int64_t> sizes,
    std::span<const std::int64_t> strides)
    : data_(data), bytes_(element_bytes), element_bytes_(element_bytes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<std::size_t>(sizes[i]);
    bytes_ *= size;
    if (size == 1) continue;
    const std::ptrdiff_t stride =
        strides[i] * static_cast<std::ptrdiff_t>(element_bytes);
    const bool continues = !dims_.empty() &&
        dims_.back().stride == stride * static_cast<std::ptrdiff_t>(size);
    if (continues) {
      dims_.back() = {.size = dims_.back().size * size, .stride = stride};
    } else {
      dims_.push_back({.size = size, .stride = stride});
    }
  }
  const bool is_contiguous = bytes_ == 0 || dims_.empty() ||
      (dims_.size() == 1 &&
       dims_[0].stride == static_cast<std::ptrdiff_t>(element_bytes));
  if (is_contiguous) dims_.clear();
  static std::byte nothing;
  if (bytes_ == 0) data_ = &nothing;
}

void HostMemory::copy_out(std::byte* to, std::size_t begin, std::size_t bytes)
    const {
  if (bytes == 0) return;
  if (dims_.empty()) {
    std::memcpy(to, data_ + begin, bytes);
  } else {
    copy_strided<true>(to, begin, bytes);
  }
}

void HostMemory::copy_in(
    std::size_t begin,
    const std::byte* from,
    std::size_t bytes) const {
  if (bytes == 0) return;
  if (dims_.empty()) {
    std::memcpy(data_ + begin, from, bytes);
  } else {
    // This direction only reads `from`.
    copy_strided<false>(const_cast<std::byte*>(from), begin, bytes);
  }
}

template <bool kOut>
void HostMemory::copy_strided(
    std::byte* flat,
    std::size_t begin,
    std::size_t bytes) const {
  const std::size_t num_dims = dims_.size();
  std::size_t next = begin / element_bytes_;
  const std::size_t end = next + bytes / element_bytes_;
  std::vector<std::size_t> index(num_dims);
  while (next < end) {
    std::size_t rest = next;
    std::byte* at = data_;
    for (std::size_t d = num_dims; d-- > 0;) {
      index[d] = rest % dims_[d].size;
      rest /= dims_[d].size;
      at += static_cast<std::ptrdiff_t>(index[d]) * dims_[d].stride;
    }
    const std::size_t count =
        copy_run<kOut>(flat, index.back(), end - next, index, at);
    flat += count * element_bytes_;
    next += count;
  }
}

// Copies elements from `at` on, which is number `first` of its row: the rest of
// the row, or several rows of a transposed tensor. Returns the number copied.
template <bool kOut>
std::size_t HostMemory::copy_run(
    std::byte* flat,
    std::size_t first,
    std::size_t most,
    const std::vector<std::size_t>& index,
    std::byte* at) const {
  const Dim& row = dims_.back();
  const std::size_t in_row = std::min(row.size - first, most);
  const bool is_transposed = dims_.size() > 1 && first == 0 &&
      dims_[dims_.size() - 2].stride ==
          static_cast<std::ptrdiff_t>(element_bytes_);
  const std::size_t num_rows = !is_transposed
      ? 0
      : std::min(
            dims_[dims_.size() - 2].size - index[dims_.size() - 2],
            most / row.size);
  if (num_rows < 2) {
    copy_row<kOut>(flat, at, row.stride, in_row, element_bytes_);
    return in_row;
  }
  for (std::size_t r = 0; r < num_rows; r += kTile) {
    const std::size_t rows = std::min(kTile, num_rows - r);
    for (std::size_t c = 0; c < row.size; c += kTile) {
      const std::size_t columns = std::min(kTile, row.size - c);
      for (std::size_t k = 0; k < rows; ++k) {
        copy_row<kOut>(
            flat + ((r + k) * row.size + c) * element_bytes_,
            at + static_cast<std::ptrdiff_t>((r + k) * element_bytes_) +
                static_cast<std::ptrdiff_t>(c) * row.stride,
            row.stride,
            columns,
            element_bytes_);
      }
    }
  }
  return num_rows * row.size;
}

}  // namespace accelerate::detail
