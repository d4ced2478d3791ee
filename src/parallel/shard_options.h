#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/parallel.h>

#include "config/environment.h"
#include "config/settings.h"
#include "parallel/shard.h"

namespace accelerate::detail {

/// Over which ranks.
enum class ShardSpan {
  none,     ///< nothing is split
  all,      ///< over all ranks that other degrees leave
  machine,  ///< over those of each machine
};

struct ShardRequest {
  ShardSpan span = ShardSpan::none;
  ShardOptions options = {};
  std::optional<ActivationCheckpointingOptions> activation_checkpointing =
      std::nullopt;
  /// DeepSpeed's, where it says numbers.
  std::optional<int> gradient_accumulation_steps = std::nullopt;
  std::optional<double> gradient_clipping = std::nullopt;
  /// DeepSpeed's configuration, JSON.
  std::string deepspeed_config = {};
  /// Only rank 0 makes models' values, or reads them.
  bool makes_on_rank_0 = false;
  bool reads_on_rank_0 = false;
  /// Settings that are understood and have no counterpart here.
  std::vector<std::string> ignored = {};
};

/// Megatron-LM's words are used, by code or launcher.
bool asks_for_megatron(
    const ParallelOptions& options,
    const Settings& settings);

/// What they say of copies of the model; throws ConfigError where they
/// contradict themselves.
ShardRequest read_megatron(
    const MegatronLMOptions& given,
    const Settings& settings);

/// What code and launcher ask for, in FSDP's words, in DeepSpeed's, in
/// Megatron-LM's, or by a degree alone. Nothing if they do not. `mixed_precision`: "no", "fp16",
/// "bf16". Throws one ConfigError with everything that contradicts itself or
/// that this version cannot do.
std::optional<ShardRequest> read_shard_request(
    const ParallelOptions& options,
    const Settings& settings,
    const Environment& environment,
    std::string_view mixed_precision);

}  // namespace accelerate::detail
