#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/sequence_shards.h>
#include <accelerate/world.h>

namespace accelerate {

/// How keys and values of the other ranks come to a rank.
enum class KeyValueRotation {
  /// All at once, while the rank's own block is computed with. Needs memory for
  /// the keys and values of the whole sequence.
  allgather,
  /// One block at a time, each while the one before it is computed with. Needs
  /// memory for two blocks besides the rank's own.
  alltoall,
};

/// Options of attention over a sequence that is divided among ranks. All ranks
/// give the same ones.
struct SequenceAttentionOptions {
  /// Each position attends to itself and those before it in the sequence.
  bool is_causal = false;
  /// Which positions attend to which (bool, true: attends) or what is added to
  /// the scores (floating), as for torch's scaled_dot_product_attention; not
  /// together with is_causal. Broadcasts to batch x heads x queries x keys,
  /// where keys are those of the whole sequence, in order, and queries are
  /// those of the whole sequence or those of this rank. Lengths may include
  /// padding. Must not require a gradient.
  std::optional<at::Tensor> attn_mask = std::nullopt;
  /// The document of each position, integers, `batch x length` or `length`, for
  /// the whole sequence: positions of different documents do not attend to each
  /// other (packed sequences, block-diagonal masks).
  std::optional<at::Tensor> document_ids = std::nullopt;
  /// Positions that are not attended to, bool (true: padding), `batch x length`,
  /// for the whole sequence; also together with is_causal or attn_mask. The
  /// output of a query that attends to nothing is 0.
  std::optional<at::Tensor> key_padding_mask = std::nullopt;
  /// Probability with which a weight is dropped. Which are dropped follows from
  /// a seed and from the weight's place in the sequence, not from the number of
  /// ranks.
  double dropout_p = 0;
  /// Seed of dropout. Unset: each call draws one from the generators of the
  /// ranks, of which the first rank's counts.
  std::optional<std::uint64_t> dropout_seed = std::nullopt;
  /// The number in the model of the query's first head, where ranks have some
  /// heads each (tensor parallelism): with the same seed, they then drop the
  /// weights that one process drops. Heads with the same number and seed drop
  /// alike.
  std::int64_t first_head = 0;
  /// Factor of the scores; unset: 1 / sqrt(size of a head).
  std::optional<double> scale = std::nullopt;
  /// Allows keys and values to have fewer heads than queries.
  bool enable_gqa = false;
  /// How keys and values travel in ring_attention; ulysses_attention ignores it.
  KeyValueRotation rotation = KeyValueRotation::allgather;
};

/// Attention over a sequence of which each rank of `group` has the positions
/// that `shards` gives it: what torch's scaled_dot_product_attention would
/// return for these positions, had it the whole sequence. Each rank computes
/// its queries with its own keys and values and then with those of the others
/// as they arrive, and merges the results in fp32 (Liu, Zaharia and Abbeel,
/// Ring Attention with Blockwise Transformers, 2023). Differentiable once; in
/// backward, keys and values are exchanged again, and their gradients travel to
/// their owners. Causal attention computes only what is visible, and sends only
/// what is read.
///
/// `query`: batch x heads x local_length x size; `key` and `value` with the same
/// positions; or 3 dimensions, without heads. Padded queries give outputs
/// without meaning, padded keys are not attended to. Throws ConfigError if
/// shapes do not fit, DistributedError if a rank is gone. Collective, in forward
/// and in backward, which all ranks run alike.
ACCELERATE_API at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShards& shards,
    const SequenceAttentionOptions& options = {});

/// The same result by exchanging heads (Jacobs et al., DeepSpeed Ulysses, 2023):
/// each rank gets all positions of some heads, attends, and gives the positions
/// back. Two all-to-alls of the query's size and two of the keys', each with
/// its way back; no rotation. Heads that do not divide go to the first ranks,
/// and heads of keys that several ranks need to each of them. Tensors have 4
/// dimensions; a mask has the rows of the whole sequence. Throws ConfigError if
/// the query has fewer heads than the group has ranks, and as ring_attention()
/// does.
ACCELERATE_API at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShards& shards,
    const SequenceAttentionOptions& options = {});

}  // namespace accelerate
