#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/nested.h>

namespace accelerate {

/// What a loss leaves out: PyTorch's ignore_index.
inline constexpr std::int64_t kIgnoredLabel = -100;

struct PadCollateOptions {
  std::int64_t pad_token_id = 0;
  /// Rows are as long as the longest sequence of the batch, rounded up to a
  /// multiple of this.
  std::int64_t pad_to_multiple_of = 1;
  /// Longer sequences lose their end. Unset: no limit.
  std::optional<std::int64_t> max_length = std::nullopt;
  /// Padding before the sequences instead of after them, as for generation.
  bool pad_left = false;
};

/// Sequences of a batch, padded to one length. kLong but for attention_mask.
struct PaddedBatch {
  /// [batch, length].
  at::Tensor input_ids;
  /// [batch, length] kBool: true where there is a token.
  at::Tensor attention_mask;
  /// [batch, length]; kIgnoredLabel where there is no token.
  at::Tensor labels;
  /// [batch]: tokens of each row.
  at::Tensor lengths;

  template <class Visitor>
  friend void visit_tensors(PaddedBatch& batch, Visitor&& visitor) {
    visitor(batch.input_ids);
    visitor(batch.attention_mask);
    visitor(batch.labels);
    visitor(batch.lengths);
  }
};

struct PackCollateOptions {
  /// Tokens of a row.
  std::int64_t row_length = 1024;
  /// Rows of a batch. Unset: as many as it takes. With it, what does not fit is
  /// an error, and rows with nothing in them are all padding.
  std::optional<std::int64_t> num_rows = std::nullopt;
  std::int64_t pad_token_id = 0;
  /// What happens to a sequence longer than a row.
  enum class LongSequences { refuse, cut, split };
  LongSequences long_sequences = LongSequences::refuse;
  /// A sequence's first token is no label: nothing before it in the row belongs
  /// to it.
  bool ignore_first_label = true;
};

/// Several sequences to a row, so that little is padding. kLong but for the two
/// masks, which are kBool.
struct PackedBatch {
  /// [rows, row_length].
  at::Tensor input_ids;
  /// [rows, row_length]: true where there is a token.
  at::Tensor attention_mask;
  /// [rows, row_length]: the place of each token in its sequence, from 0; 0 in
  /// padding.
  at::Tensor position_ids;
  /// [rows, row_length]: which sequence of its row a token belongs to, from 1; 0
  /// in padding. block_attention_mask() makes a mask of it.
  at::Tensor sequence_ids;
  /// [rows, row_length]; kIgnoredLabel where the loss leaves a token out.
  at::Tensor labels;
  /// [rows, row_length]: true where the loss counts.
  at::Tensor loss_mask;
  /// [rows].
  at::Tensor sequences_in_row;
  at::Tensor tokens_in_row;

  template <class Visitor>
  friend void visit_tensors(PackedBatch& batch, Visitor&& visitor) {
    visitor(batch.input_ids);
    visitor(batch.attention_mask);
    visitor(batch.position_ids);
    visitor(batch.sequence_ids);
    visitor(batch.labels);
    visitor(batch.loss_mask);
    visitor(batch.sequences_in_row);
    visitor(batch.tokens_in_row);
  }
};

namespace detail {
/// Tokens, and labels of the same length.
using TokenSequence = std::pair<at::Tensor, at::Tensor>;
/// Of a sample's tensors. Throws ConfigError unless they are one or two 1-d
/// tensors of whole numbers, equally long.
ACCELERATE_API TokenSequence
token_sequence(const std::vector<at::Tensor>& tensors);
ACCELERATE_API PaddedBatch
pad(const std::vector<TokenSequence>& sequences,
    const PadCollateOptions& options);
ACCELERATE_API PackedBatch pack(
    const std::vector<TokenSequence>& sequences,
    const PackCollateOptions& options);
template <class Sample>
std::vector<TokenSequence> token_sequences(const std::vector<Sample>& samples) {
  std::vector<TokenSequence> sequences;
  for (const Sample& sample : samples)
    sequences.push_back(token_sequence(tensors_of(sample)));
  return sequences;
}
}  // namespace detail

/// A collate function for sequences of different lengths: pads them. A sample's
/// first tensor is its tokens, the second, if it has one, its labels, else the
/// tokens are; both 1-d. Labels are not shifted.
class ACCELERATE_API PadCollate {
 public:
  /// Throws ConfigError for lengths below 1.
  explicit PadCollate(const PadCollateOptions& options = {});
  template <NestedTensors Sample>
  PaddedBatch operator()(const std::vector<Sample>& samples) const {
    return detail::pad(detail::token_sequences(samples), options_);
  }

 private:
  PadCollateOptions options_;
};

/// A collate function that packs sequences into rows, each into the first row
/// with room, the longest first (first-fit decreasing: Johnson, "Near-optimal
/// bin packing algorithms", 1973). Samples as PadCollate's. Sequences without
/// tokens are left out.
class ACCELERATE_API PackCollate {
 public:
  /// Throws ConfigError for lengths below 1.
  explicit PackCollate(const PackCollateOptions& options);
  template <NestedTensors Sample>
  PackedBatch operator()(const std::vector<Sample>& samples) const {
    return detail::pack(detail::token_sequences(samples), options_);
  }

 private:
  PackCollateOptions options_;
};

/// From sequence_ids of [rows, length] a kBool mask of [rows, 1, length, length]
/// for scaled_dot_product_attention: true where both tokens are of one sequence
/// and, if `is_causal`, the second is not after the first. A token of padding
/// sees itself, so that no row of the mask is empty.
[[nodiscard]] ACCELERATE_API at::Tensor block_attention_mask(
    const at::Tensor& sequence_ids,
    bool is_causal = true);

/// Where each sequence of all rows, laid one after another, begins and the last
/// ends: kInt, [sequences + 1], as attention kernels for unequal lengths want it.
/// Padding counts as a sequence of its own.
[[nodiscard]] ACCELERATE_API at::Tensor cumulative_lengths(
    const at::Tensor& sequence_ids);

}  // namespace accelerate
