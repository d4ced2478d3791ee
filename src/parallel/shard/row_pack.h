#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Where the rows of several tensors lie in a pack: memory in which every rank
/// has a part of the same size, so that collectives can move it. Ranks may have
/// different numbers of rows; the end of some parts is then unused.
class RowPack {
 public:
  explicit RowPack(int num_ranks) : num_ranks_(num_ranks) {}

  /// Adds a tensor of these sizes. `begins`: the first row of each rank, and the
  /// end; must outlive the object.
  void add(
      at::IntArrayRef sizes,
      at::ScalarType dtype,
      const std::vector<std::int64_t>& begins);
  /// Adds `count` elements that every part has; returns where they begin.
  std::int64_t add_to_all(std::int64_t count, at::ScalarType dtype);

  [[nodiscard]] bool is_empty() const { return part_bytes_ == 0; }
  /// Returns a new pack, with a row of bytes per rank.
  [[nodiscard]] at::Tensor make(c10::Device device) const;

  /// The rows that `part`, the bytes of `rank`, has of tensor `i`, in one
  /// dimension.
  [[nodiscard]] at::Tensor
  rows_in(const at::Tensor& part, std::size_t i, int rank) const;
  void pack(const at::Tensor& pack, std::size_t i, const at::Tensor& full)
      const;
  void unpack(const at::Tensor& pack, std::size_t i, const at::Tensor& full)
      const;

 private:
  struct Entry {
    std::int64_t begin;  // in a part
    std::int64_t row_bytes;
    at::ScalarType dtype;
    const std::vector<std::int64_t>* begins;

    [[nodiscard]] std::int64_t num_rows(int rank) const;
  };

  /// Calls `copy(in_pack, in_full)` for views that together have all rows.
  template <class Copy>
  void for_each_view(
      const at::Tensor& pack,
      std::size_t i,
      const at::Tensor& full,
      Copy&& copy) const;

  int num_ranks_;
  std::vector<Entry> entries_;
  std::int64_t part_bytes_ = 0;
};

/// Whether all ranks have the same number of rows.
bool are_even(const std::vector<std::int64_t>& begins);

}  // namespace accelerate::detail
