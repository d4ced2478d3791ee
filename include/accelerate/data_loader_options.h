#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include <accelerate/batch_sequences.h>
#include <accelerate/samplers.h>

namespace accelerate {

/// How a DataLoader forms batches, distributes them over the ranks, and reads
/// ahead. Fields that DataLoaderConfiguration also has are std::optional;
/// unset, they follow AcceleratorOptions::dataloader_config.
struct DataLoaderOptions {
  // Samples of a batch, and their order.

  /// Samples per rank and micro-step; with `split_batches`, samples of all
  /// ranks together.
  std::int64_t batch_size = 1;
  /// Reshuffle in every epoch by a keyed permutation, which takes constant
  /// memory and start-up time at any size.
  bool shuffle = false;
  /// With `shuffle`: use PyTorch's order, the one that Accelerate's option of
  /// this name yields for the same seed and epoch, to compare runs with Python.
  /// Takes memory and start-up time that grow with the dataset. Default: false.
  std::optional<bool> use_seedable_sampler = std::nullopt;
  /// The order of a pass, in place of `shuffle`. Loaders must not share one.
  std::shared_ptr<Sampler> sampler = nullptr;
  /// Which samples form each batch, in place of batch_size, shuffle, sampler
  /// and split_batches.
  std::shared_ptr<BatchSampler> batch_sampler = nullptr;

  // Distribution of batches over the ranks.

  /// Leave out the samples that do not fill a batch on every rank.
  bool drop_last = false;
  /// Cut each batch into one slice per rank instead of dealing whole batches to
  /// the ranks in turn. `batch_size` must be a multiple of the number of ranks.
  /// Default: false.
  std::optional<bool> split_batches = std::nullopt;
  /// Fill the last round up with samples from the beginning, so that no rank
  /// waits for another; `gather_for_metrics` leaves the repeated ones out.
  /// Without it, ranks may have unequal numbers of batches, and collectives in
  /// the loop would not match; it cannot be combined with dispatch_batches.
  /// Default: true.
  std::optional<bool> even_batches = std::nullopt;
  /// For data that only one process can read: rank 0 reads, and sends the other
  /// ranks their slices. The last round is cut evenly, and filled up with
  /// samples of the first. Default: true for streams whose batches can be sent,
  /// unless even_batches is false.
  std::optional<bool> dispatch_batches = std::nullopt;
  /// The dataset, or its sampler, already gives each rank its own shard, which
  /// that rank reads completely. Make the shards equally long, or loop inside
  /// join_uneven_inputs; gather_for_metrics leaves nothing out.
  bool already_sharded = false;
  /// Give each rank along `context` its positions of the sequences of a batch.
  /// Default: batches stay whole.
  std::optional<BatchSequences> sequences = std::nullopt;

  // Randomness.

  /// Seeds the shuffle, together with the epoch. Default: rank 0's
  /// torch::manual_seed.
  std::optional<std::uint64_t> data_seed = std::nullopt;

  // Prefetching, and copies to the device.

  /// Move batches to the accelerator's device. False: they stay where the
  /// dataset or collate function made them. Unset: as
  /// AcceleratorOptions::device_placement says.
  std::optional<bool> device_placement = std::nullopt;
  /// Copy to the device without waiting, for batches that the dataset makes in
  /// pinned memory; `pin_memory` implies it. Default: false.
  std::optional<bool> non_blocking = std::nullopt;
  /// Number of threads that read and collate ahead. 0: the loop's own thread
  /// reads each batch when it needs it. Threads call `get` or `get_batch`, and
  /// the collate function, concurrently, but never `next` of a stream. Without
  /// a timeout, the loop's thread also makes batches, instead of sleeping, if
  /// one takes less than 0.2 ms. Raise it while prefetch_report() shows waits.
  int num_workers = 0;
  /// Maximum number of batches per worker that are ready or being made. Raise
  /// it if some batches take much longer than others; all of them take memory.
  /// Unset: 2.
  std::optional<int> prefetch_factor = std::nullopt;
  /// Hand out batches in the order of the pass. False: a slow batch does not
  /// hold up others, which come as they are made (only the last stays last),
  /// and a pass resumed from a state continues at the first batch not handed
  /// out, so that some later ones are repeated.
  bool in_order = true;
  /// Put batches into pinned memory, from which copies to the device are faster
  /// and need not wait. Costs a copy of each batch in host memory, which
  /// workers make ahead. Has no effect without an accelerator.
  bool pin_memory = false;
  /// With workers: how long the loop waits for a batch before it throws an
  /// Error that names the samples being read, and how long leaving the loop
  /// waits for workers; 0: without limit.
  std::chrono::milliseconds timeout{0};
};

}  // namespace accelerate
