#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "format/tensors/tensor_writer.h"
#include "params/box_elements.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

/// Lets one rank of a group read tensors that are split over it, a piece at a
/// time, so that nobody ever holds a whole one. Their boxes are of any kind,
/// and several ranks may have the same one.
class ShardReader {
 public:
  static constexpr int kNumTags = 2;

  /// Called by all ranks of `group` with the same rows, which live longer.
  /// `first_tag`: of kNumTags that nobody else uses.
  ShardReader(
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
  /// A box, where its bytes lie in the tensor, and a rank that has it.
  struct Holder {
    int rank;
    BoxElements bytes;
  };

  /// Bytes of this rank's box, on the host.
  [[nodiscard]] at::Tensor
  own_bytes(std::size_t row, std::int64_t begin, std::int64_t count) const;
  /// Fills `out` with those of any rank's box, from byte `begin` on; on the
  /// reader.
  void
  read(int rank, std::size_t row, std::int64_t begin, const at::Tensor& out);

  Group group_;
  std::vector<const Parameter*> rows_;
  int reader_;
  int first_tag_;
  /// By row; together they cover it once. On the reader only.
  std::vector<std::vector<Holder>> holders_;
  std::mutex mutex_;
};

}  // namespace accelerate::detail
