#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/sequence_shards.h>
#include <accelerate/world.h>

namespace accelerate {

/// How each rank gets the keys and values of the others.
enum class KeyValueRotation {
  /// All at once, while the rank's own block is computed. Needs memory for the
  /// keys and values of the whole sequence.
  allgather,
  /// One block at a time, each while the previous one is computed. Needs memory
  /// for two blocks besides the rank's own.
  alltoall,
};

/// Options of attention over a sequence that is divided among ranks. All ranks
/// must pass the same ones.
struct SequenceAttentionOptions {
  /// Each position attends to itself and those before it in the sequence.
  bool is_causal = false;
  /// Which positions attend to which (bool, true: attends) or what is added to
  /// the scores (floating), as for torch's scaled_dot_product_attention; not
  /// together with is_causal. Broadcasts to batch x heads x queries x keys,
  /// with the keys of the whole sequence, in order, and the queries of the
  /// whole sequence or of this rank. Lengths can include padding. Must not
  /// require a gradient.
  std::optional<at::Tensor> attn_mask = std::nullopt;
  /// The document of each position, integers, `batch x length` or `length`, for
  /// the whole sequence: positions of different documents do not attend to each
  /// other (packed sequences, block-diagonal masks).
  std::optional<at::Tensor> document_ids = std::nullopt;
  /// Positions that are not attended to, `batch x length`, bool (true:
  /// padding), for the whole sequence; also together with is_causal or
  /// attn_mask. The output of a query that attends to nothing is 0.
  std::optional<at::Tensor> key_padding_mask = std::nullopt;
  /// Probability of dropping a weight. Which weights are dropped depends on a
  /// seed and on their places in the sequence, not on the number of ranks.
  double dropout_p = 0;
  /// Seed of dropout. Unset: each call draws one from each rank's generator,
  /// and the first rank's is used.
  std::optional<std::uint64_t> dropout_seed = std::nullopt;
  /// Index in the model of the query's first head, where each rank has some of
  /// the heads (tensor parallelism): with the same seed, ranks then drop the
  /// weights that one process would. Heads with the same index and seed drop
  /// the same weights.
  std::int64_t first_head = 0;
  /// Factor of the scores; unset: 1 / sqrt(size of a head).
  std::optional<double> scale = std::nullopt;
  /// Allows fewer heads for keys and values than for queries.
  bool enable_gqa = false;
  /// How ring_attention exchanges keys and values; ulysses_attention ignores
  /// it.
  KeyValueRotation rotation = KeyValueRotation::allgather;
};

/// Attention over a sequence that is divided among the ranks of `group` as
/// `shards` says. Returns what torch's scaled_dot_product_attention would
/// return for this rank's positions, given the whole sequence. Each rank
/// attends to its own keys and values and then to those of the others as they
/// arrive, and merges the results in fp32 (Liu, Zaharia and Abbeel, Ring
/// Attention with Blockwise Transformers, 2023). Differentiable once; in
/// backward, keys and values are exchanged again, and their gradients are sent
/// to their owners. Causal attention computes only what is visible, and sends
/// only what is read.
///
/// `query`: batch x heads x local_length x size; `key` and `value` with the
/// same positions; or 3 dimensions, without heads. Outputs of padded queries
/// are meaningless; padded keys are not attended to. Throws ConfigError if
/// shapes do not fit, DistributedError if a rank is gone. Collective in forward
/// and backward, which all ranks must run alike.
ACCELERATE_API at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShards& shards,
    const SequenceAttentionOptions& options = {});

/// Attends over the sequence by exchanging heads (Jacobs et al., DeepSpeed
/// Ulysses, 2023): each rank gets all positions of some heads, attends, and
/// gives the positions back. Takes two all-to-alls of the query's size and two
/// of the keys', each with its reverse in backward; no rotation. If heads do
/// not divide evenly, the first ranks get more; key heads that several ranks
/// need are sent to each of them. Tensors have 4 dimensions; a mask has the
/// rows of the whole sequence. Throws like ring_attention(), and ConfigError if
/// the query has fewer heads than the group has ranks.
ACCELERATE_API at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShards& shards,
    const SequenceAttentionOptions& options = {});

}  // namespace accelerate
