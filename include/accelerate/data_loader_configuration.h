#pragma once

#include <cstdint>
#include <optional>

#include <accelerate/batch_sequences.h>

namespace accelerate {

/// What an Accelerator's loaders do where their own DataLoaderOptions leave a
/// field unset. The fields have the meanings of data_loader_options.h.
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
  /// their passes. False: it leaves them out, and loaders begin a new pass
  /// after load_state(). Accelerate's default is false.
  bool use_stateful_dataloader = true;
  BatchSequences sequences = {};
};

}  // namespace accelerate
