#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/nested.h>

namespace accelerate {

/// Labels with this value are ignored by losses: PyTorch's ignore_index.
inline constexpr std::int64_t kIgnoredLabel = -100;

struct PadCollateOptions {
  /// The token that fills up a row.
  std::int64_t pad_token_id = 0;
  /// Rows are as long as the longest sequence of the batch, rounded up to a
  /// multiple of this. Larger: fewer different shapes, more padding.
  std::int64_t pad_to_multiple_of = 1;
  /// Longer sequences are truncated at their end. Unset: no limit.
  std::optional<std::int64_t> max_length = std::nullopt;
  /// Pad before the sequences instead of after them, as for generation.
  bool pad_left = false;
};

/// Sequences of a batch, padded to one length. All tensors are kLong except
/// attention_mask.
struct PaddedBatch {
  /// [batch, length].
  at::Tensor input_ids;
  /// [batch, length] kBool: true where there is a token.
  at::Tensor attention_mask;
  /// [batch, length]; kIgnoredLabel where there is no token.
  at::Tensor labels;
  /// [batch]: number of tokens in each row.
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
  /// Number of tokens in a row.
  std::int64_t row_length = 1024;
  /// Number of rows in a batch. Unset: as many as needed. If set, all batches
  /// have one shape, sequences that do not fit are an error, and rows without
  /// any are all padding.
  std::optional<std::int64_t> num_rows = std::nullopt;
  /// The token that fills up a row.
  std::int64_t pad_token_id = 0;
  /// What happens to a sequence longer than a row: it is an error (`refuse`),
  /// its end is dropped (`cut`), or it goes on in another row (`split`).
  enum class LongSequences { refuse, cut, split };
  /// How a sequence longer than a row is handled.
  LongSequences long_sequences = LongSequences::refuse;
  /// The first token of a sequence is not a label: no earlier token in the row
  /// belongs to it. Set it to false for labels that are already shifted.
  bool ignore_first_label = true;
};

/// Sequences of a batch, several per row, with little padding. All tensors are
/// kLong except the two masks, which are kBool.
struct PackedBatch {
  /// [rows, row_length].
  at::Tensor input_ids;
  /// [rows, row_length]: true where there is a token.
  at::Tensor attention_mask;
  /// [rows, row_length]: the position of each token in its sequence, from 0; 0
  /// in padding.
  at::Tensor position_ids;
  /// [rows, row_length]: the sequence in its row that a token belongs to, from
  /// 1; 0 in padding. block_attention_mask() makes a mask of it.
  at::Tensor sequence_ids;
  /// [rows, row_length]; kIgnoredLabel where the loss ignores a token.
  at::Tensor labels;
  /// [rows, row_length]: true where the loss counts.
  at::Tensor loss_mask;
  /// [rows]: number of sequences in each row.
  at::Tensor sequences_in_row;
  /// [rows]: number of tokens in each row.
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
/// The tokens and labels of a sample. Throws ConfigError unless it is one or two
/// 1-d integer tensors of equal length, and nothing else.
ACCELERATE_API TokenSequence token_sequence(const NestedParts& sample);
ACCELERATE_API PaddedBatch
pad(const std::vector<TokenSequence>& sequences,
    const PadCollateOptions& options);
ACCELERATE_API PackedBatch pack(
    const std::vector<TokenSequence>& sequences,
    const PackCollateOptions& options);
template <class Sample>
std::vector<TokenSequence> token_sequences(const std::vector<Sample>& samples) {
  std::vector<TokenSequence> sequences;
  for (Sample sample : samples)
    sequences.push_back(token_sequence(parts_of(sample)));
  return sequences;
}
}  // namespace detail

/// A collate function that pads sequences of different lengths. The first
/// tensor of a sample holds its tokens, the second, if there is one, its labels
/// (by default, the tokens are the labels); both are 1-d. Labels are not
/// shifted. Throws ConfigError for samples that contain anything else, which
/// the batch would lose.
class ACCELERATE_API PadCollate {
 public:
  /// Throws ConfigError for lengths below 1.
  explicit PadCollate(const PadCollateOptions& options = {});
  /// Returns one row per sample. Throws ConfigError for samples that are not
  /// sequences of tokens.
  template <NestedTensors Sample>
  PaddedBatch operator()(const std::vector<Sample>& samples) const {
    return detail::pad(detail::token_sequences(samples), options_);
  }

 private:
  PadCollateOptions options_;
};

/// A collate function that packs sequences into rows, each into the first row
/// with room, the longest first (first-fit decreasing: Johnson, "Near-optimal
/// bin packing algorithms", 1973). Takes the same samples as PadCollate. Drops
/// sequences without tokens.
class ACCELERATE_API PackCollate {
 public:
  /// Throws ConfigError for lengths below 1.
  explicit PackCollate(const PackCollateOptions& options);
  /// Returns rows of several sequences. Throws ConfigError for samples that are
  /// not sequences of tokens, and for too long ones.
  template <NestedTensors Sample>
  PackedBatch operator()(const std::vector<Sample>& samples) const {
    return detail::pack(detail::token_sequences(samples), options_);
  }

 private:
  PackCollateOptions options_;
};

/// A kBool mask of [rows, 1, length, length] from sequence_ids of [rows,
/// length], for scaled_dot_product_attention: true where both tokens belong to
/// one sequence and, if `is_causal`, the second is not after the first. A
/// padding token attends to itself, so that no row of the mask is empty.
[[nodiscard]] ACCELERATE_API at::Tensor block_attention_mask(
    const at::Tensor& sequence_ids,
    bool is_causal = true);

/// Where each sequence begins when all rows are concatenated, and where the
/// last ends: kInt, [sequences + 1], as attention kernels for variable lengths
/// expect it. Padding counts as a sequence of its own.
[[nodiscard]] ACCELERATE_API at::Tensor cumulative_lengths(
    const at::Tensor& sequence_ids);

}  // namespace accelerate
