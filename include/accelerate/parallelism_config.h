#pragma once

#include <optional>
#include <string>

namespace accelerate {

/// Degrees of parallelism in the words of Accelerate's ParallelismConfig. A
/// field left unset takes what the launcher said (`--parallelism_config_*`,
/// `PARALLELISM_CONFIG_*`), else 1. The product is the number of ranks.
struct ParallelismConfig {
  /// Copies of the model.
  std::optional<int> dp_replicate_size = std::nullopt;
  /// Ranks that split parameters, gradients and optimizer state.
  std::optional<int> dp_shard_size = std::nullopt;
  /// Ranks that split each layer.
  std::optional<int> tp_size = std::nullopt;
  /// Ranks that split the sequence, each seeing parts of the others.
  std::optional<int> cp_size = std::nullopt;
  /// "torch".
  std::optional<std::string> cp_backend = std::nullopt;
  /// "allgather" or "alltoall". Unset: "allgather".
  std::optional<std::string> cp_comm_strategy = std::nullopt;
  /// Ranks that split the sequence, exchanging heads of attention for it
  /// (Ulysses); not together with cp_size.
  std::optional<int> sp_size = std::nullopt;
  /// "deepspeed".
  std::optional<std::string> sp_backend = std::nullopt;
  /// Length of all sequences, if sp_seq_length_is_variable is false.
  std::optional<int> sp_seq_length = std::nullopt;
  /// Unset: true.
  std::optional<bool> sp_seq_length_is_variable = std::nullopt;
  std::optional<std::string> sp_attn_implementation = std::nullopt;
};

}  // namespace accelerate
