#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include <accelerate/samplers.h>

namespace accelerate {

/// How a DataLoader forms batches, gives them to the ranks, and reads ahead.
struct DataLoaderOptions {
  // Which samples form a batch, and in what order.

  /// Samples of one rank in one micro-step; of all ranks together with
  /// `split_batches`.
  std::int64_t batch_size = 1;
  /// A new order in every epoch: a keyed permutation, of constant memory and
  /// start time at any size.
  bool shuffle = false;
  /// With `shuffle`: PyTorch's order instead, that of Accelerate's option of
  /// this name for the same seed and epoch.
  bool use_seedable_sampler = false;
  /// The order of a pass, in place of `shuffle`; not for several loaders at
  /// once.
  std::shared_ptr<Sampler> sampler = nullptr;
  /// Which samples form each batch, in place of batch_size, shuffle, sampler
  /// and split_batches.
  std::shared_ptr<BatchSampler> batch_sampler = nullptr;

  // Which rank gets which batch.

  /// Leave out the samples that do not fill a batch on every rank.
  bool drop_last = false;
  /// Cut each batch into one slice a rank instead of giving out whole batches
  /// in turn. `batch_size` must be a multiple of the number of ranks.
  bool split_batches = false;
  /// Fill the last round up with samples from the beginning, so that no rank
  /// waits for another; `gather_for_metrics` leaves the repeated ones out.
  /// Without it, ranks may have unequal numbers of batches, and collectives in
  /// the loop would not match.
  bool even_batches = true;
  /// Rank 0 alone reads and sends the others their slices, for data that only
  /// one process can read; the last round is cut evenly, filled up with samples
  /// of the first. Unset: for streams whose batches can be sent.
  std::optional<bool> dispatch_batches = std::nullopt;
  /// The dataset, or its sampler, gives each rank its own part already: each
  /// reads all it has. Make the parts equally long, or loop inside
  /// join_uneven_inputs; gather_for_metrics leaves nothing out.
  bool already_sharded = false;

  // Randomness.

  /// Seeds the shuffle, with the epoch. Unset: rank 0's torch::manual_seed.
  std::optional<std::uint64_t> data_seed = std::nullopt;

  // Reading ahead, and copies to the device.

  /// Copy to the device without waiting, for batches in pinned memory.
  bool non_blocking = false;
  /// Threads that read and collate ahead; 0: the loop's own thread does, when a
  /// batch is asked for. Several call `get` or `get_batch`, and the collate
  /// function, of one dataset at once; a stream's `next` never two at once. The
  /// loop's thread makes a batch too, rather than sleep, where that takes less
  /// than a fifth of a millisecond and there is no timeout.
  int num_workers = 0;
  /// Batches in hand or in work for each worker, at most. Unset: 2.
  std::optional<int> prefetch_factor = std::nullopt;
  /// Hand batches out in the order of the pass. Without it a slow batch holds
  /// none up: they come as they are made (only the last stays the last), and
  /// a state taken in the middle of a pass makes it go on at the first batch
  /// not handed out, so that some later ones come again.
  bool in_order = true;
  /// Put batches into pinned memory, from which copies to the device are
  /// faster and need not wait. Without an accelerator it changes nothing.
  bool pin_memory = false;
  /// With workers: how long the loop waits for a batch before it throws an
  /// Error that names the samples the workers are at, and how long it waits
  /// for workers when it is left; 0: for ever.
  std::chrono::milliseconds timeout{0};
};

}  // namespace accelerate
