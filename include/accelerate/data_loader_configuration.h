#pragma once

#include <cstdint>
#include <optional>

#include <accelerate/batch_sequences.h>

namespace accelerate {

/// Defaults for fields that the DataLoaderOptions of an Accelerator's loaders
/// leave unset; data_loader_options.h describes them.
struct DataLoaderConfiguration {
  bool split_batches = false;
  /// Unset: true for streams whose batches can be sent, unless even_batches is
  /// false.
  std::optional<bool> dispatch_batches = std::nullopt;
  bool even_batches = true;
  bool use_seedable_sampler = false;
  /// Unset: rank 0's torch::manual_seed.
  std::optional<std::uint64_t> data_seed = std::nullopt;
  bool non_blocking = false;
  /// save_state() saves the positions of loaders, and load_state() continues
  /// their passes. If false, positions are not saved, and loaders begin a new
  /// pass after load_state(). Accelerate's default is false.
  bool use_stateful_dataloader = true;
  BatchSequences sequences = {};
};

}  // namespace accelerate
