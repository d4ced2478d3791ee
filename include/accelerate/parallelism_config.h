#pragma once

#include <optional>
#include <string>

namespace accelerate {

/// Degrees of parallelism as Accelerate's ParallelismConfig spells them. A
/// field left unset takes the launcher's value (`--parallelism_config_*`,
/// `PARALLELISM_CONFIG_*`), else 1. The product is the number of ranks. Fields
/// that describe a degree of 1 have no effect and are reported.
struct ParallelismConfig {
  // Degrees of data and tensor parallelism.

  /// Number of replicas of the model.
  std::optional<int> dp_replicate_size = std::nullopt;
  /// Number of ranks over which parameters, gradients and optimizer state are
  /// sharded.
  std::optional<int> dp_shard_size = std::nullopt;
  /// Number of tensor-parallel ranks.
  std::optional<int> tp_size = std::nullopt;

  // Sequences, by context parallelism or by Ulysses.

  /// Number of ranks over which the sequence is sharded, each attending to the
  /// shards of the others.
  std::optional<int> cp_size = std::nullopt;
  /// Must be "torch"; here for programs ported from Python.
  std::optional<std::string> cp_backend = std::nullopt;
  /// "allgather": all keys and values at once, with memory for those of the
  /// whole sequence. "alltoall": one block at a time, if that takes too much.
  /// Unset: "allgather".
  std::optional<std::string> cp_comm_strategy = std::nullopt;
  /// Number of ranks over which the sequence is sharded, exchanging attention
  /// heads (Ulysses); not together with cp_size.
  std::optional<int> sp_size = std::nullopt;
  /// Must be "deepspeed"; here for programs ported from Python.
  std::optional<std::string> sp_backend = std::nullopt;
  /// Length of all sequences, if sp_seq_length_is_variable is false.
  std::optional<int> sp_seq_length = std::nullopt;
  /// Sequences may have different lengths. False: all have sp_seq_length, which
  /// must be set. Unset: true.
  std::optional<bool> sp_seq_length_is_variable = std::nullopt;
};

}  // namespace accelerate
