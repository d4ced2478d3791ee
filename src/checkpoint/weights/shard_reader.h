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

/// Lets one rank of a group read tensors that are sharded over the group, piece
/// by piece, so that no rank ever holds a full tensor. Boxes may have any
/// shape, and several ranks may hold the same box.
class ShardReader {
 public:
  static constexpr int kNumTags = 2;

  /// All ranks of `group` call it with the same rows, which must outlive the
  /// reader. `first_tag` is the first of kNumTags reserved tags.
  ShardReader(
      Group group,
      std::vector<const Parameter*> rows,
      int reader,
      int first_tag);

  [[nodiscard]] bool is_reader() const { return group_.rank() == reader_; }

  /// Copies bytes of the full tensor of row `row`, starting at byte `begin`.
  /// Only on the reader, before finish(); may be called on any thread.
  void copy(std::size_t row, std::uint64_t begin, std::span<std::byte> out);
  [[nodiscard]] TensorToWrite to_write(std::size_t row);
  void finish();

  /// Answers the reader's requests until it calls finish(). Only on other
  /// ranks.
  void serve();

 private:
  /// A rank, and where the bytes of its box lie in the full tensor.
  struct Holder {
    int rank;
    BoxElements bytes;
  };

  /// Bytes of this rank's box, on the host.
  [[nodiscard]] at::Tensor
  own_bytes(std::size_t row, std::int64_t begin, std::int64_t count) const;
  /// Fills `out` with bytes of that rank's box, starting at byte `begin`. Only
  /// on the reader.
  void
  read(int rank, std::size_t row, std::int64_t begin, const at::Tensor& out);

  Group group_;
  std::vector<const Parameter*> rows_;
  int reader_;
  int first_tag_;
  /// The holders of each row, which together cover it once. On the reader only.
  std::vector<std::vector<Holder>> holders_;
  std::mutex mutex_;
};

}  // namespace accelerate::detail
