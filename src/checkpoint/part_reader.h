#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "format/tensor_writer.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

/// Lets one rank of a group read tensors that are split over it, a piece at a
/// time, so that nobody ever holds a whole one. Tensors are split by rows.
class PartReader {
 public:
  static constexpr int kNumTags = 2;

  /// Called by all ranks of `group` with the same rows, which live longer.
  /// `first_tag`: of kNumTags that nobody else uses.
  PartReader(
      Group group,
      std::vector<const Parameter*> rows,
      int reader,
      int first_tag);

  [[nodiscard]] bool is_reader() const { return group_.rank() == reader_; }

  /// On the reader, until it calls finish(): bytes of row number `row`, from
  /// byte `begin` of the whole tensor on. Any thread.
  void copy(std::size_t row, std::uint64_t begin, std::span<std::byte> out);
  [[nodiscard]] TensorToWrite to_write(std::size_t row);
  void finish();

  /// On the others: gives what the reader asks for, until it has finished.
  void serve();

 private:
  struct Box {
    std::int64_t begin;
    std::int64_t end;
  };

  [[nodiscard]] std::int64_t bytes_per_index(std::size_t row) const;
  /// Bytes of this rank's rows, on the host.
  [[nodiscard]] at::Tensor
  own_bytes(std::size_t row, std::int64_t begin, std::int64_t count) const;

  Group group_;
  std::vector<const Parameter*> rows_;
  int reader_;
  int first_tag_;
  /// By rank and row.
  std::vector<std::vector<Box>> boxes_;
  std::mutex mutex_;
};

}  // namespace accelerate::detail
