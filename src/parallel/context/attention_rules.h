#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/attention.h>

#include "parallel/context/block_attention.h"
#include "parallel/context/dropout_mask.h"

namespace accelerate::detail {

/// The masks and the dropout of one attention over a divided sequence, for the
/// queries of one rank.
class AttentionRules {
 public:
  AttentionRules() = default;
  /// `batch`, `num_heads`: those of the queries. `first_head`, `seed`: for
  /// dropout. Throws ConfigError for masks that do not fit.
  AttentionRules(
      const SequenceAttentionOptions& options,
      const SequenceShards& shards,
      int rank,
      std::int64_t batch,
      std::int64_t num_heads,
      std::int64_t first_head,
      std::uint64_t seed);

  /// The rules of a tile with keys of `key_rank`, for tensors on `device`.
  [[nodiscard]] BlockRules of(
      const SequenceShards& shards,
      const VisibleTile& tile,
      int key_rank,
      at::Device device) const;

 private:
  void take_mask(const at::Tensor& mask, const SequenceShards& shards);
  void take_documents(const at::Tensor& ids, std::int64_t length);
  void take_padding(const at::Tensor& mask, std::int64_t length);

  /// Batch x heads x queries of this rank x keys of the sequence; the first
  /// three may be 1. Undefined without a mask.
  at::Tensor mask_;
  /// Batch x length, and the part for this rank's queries; undefined without
  /// document ids.
  at::Tensor documents_;
  at::Tensor query_documents_;
  /// Batch x 1 x 1 x keys of the sequence, true for keys that are not attended
  /// to; undefined without padding.
  at::Tensor padding_;
  std::optional<DropoutMask> dropout_;
  std::vector<std::int64_t> query_positions_;
};

/// Throws ConfigError unless tensors and options fit together. The tensors have
/// 4 dimensions.
void check_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const SequenceAttentionOptions& options);

}  // namespace accelerate::detail
