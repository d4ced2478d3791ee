#pragma once

#include <cstdint>
#include <optional>

#include <accelerate/batch_sequences.h>

namespace accelerate {

/// Defaults for fields that the DataLoaderOptions of an Accelerator's loaders
/// leave unset; data_loader_options.h describes them.
struct DataLoaderConfiguration {
  /// A batch is divided among the ranks, instead of one for each.
  bool split_batches = false;
  /// Unset: true for streams whose batches can be sent, unless even_batches is
  /// false.
  std::optional<bool> dispatch_batches = std::nullopt;
  /// All ranks get equally many batches; samples repeat if needed.
  bool even_batches = true;
  /// Shuffle in PyTorch's order, that of Accelerate's option of this name.
  bool use_seedable_sampler = false;
  /// Unset: rank 0's torch::manual_seed.
  std::optional<std::uint64_t> data_seed = std::nullopt;
  /// Copy to the device without waiting, from pinned memory.
  bool non_blocking = false;
  /// save_state() saves the positions of loaders, and load_state() continues
  /// their passes. If false, positions are not saved, and loaders begin a new
  /// pass after load_state(). Accelerate's default is false.
  bool use_stateful_dataloader = true;
  /// How the sequences of a batch are cut for `context`.
  BatchSequences sequences = {};
};

}  // namespace accelerate
