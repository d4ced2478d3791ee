#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <accelerate/data_loader_options.h>
#include <accelerate/detail/dataset_engine.h>
#include <accelerate/detail/loaded_batch.h>
#include <accelerate/state_dict.h>

#include "data/loading/worker_pool.h"
#include "data/order/batch_source.h"

namespace accelerate::detail {

/// Reads a dataset batch by batch: claims the next batch, then makes it. Shared
/// by a loader and its workers.
class BatchFetcher : public std::enable_shared_from_this<BatchFetcher> {
 public:
  BatchFetcher(
      std::unique_ptr<LoaderDataset> its_dataset,
      const DataLoaderOptions& its_options);

  /// A stream that can be restored continues from `stream_state`.
  void begin_pass(const std::optional<StateDict>& stream_state);
  /// Whether batches go to the accelerator's device.
  [[nodiscard]] bool places_batches() const;
  /// Whether this rank reads the dataset.
  [[nodiscard]] bool reads_dataset() const;
  /// The next batch of this rank, or round if rank 0 reads for all ranks; null
  /// at the end. Must not be called concurrently.
  std::unique_ptr<LoadedBatch> claim(Worker& worker);
  void skip(std::int64_t num_batches);
  /// Uses nothing that a pass changes, since a worker that was left behind may
  /// run this during the next pass.
  void make(LoadedBatch& batch, Worker& worker);

  std::unique_ptr<LoaderDataset> dataset;
  DataLoaderOptions options;
  BatchSource source;
  /// The worker of the loop's own thread.
  Worker self;

 private:
  void begin_stream(const std::optional<StateDict>& stream_state);
  void send(LoadedBatch& batch, Worker& worker);
  void require_present(std::int64_t index) const;
  void read_batch(LoadedBatch& batch, Worker& worker);
  void read_samples(LoadedBatch& batch, Worker& worker);
  void collate(LoadedBatch& batch, Worker& worker);

  bool next_sample(LoadedBatch* batch);
  /// Number of rows that this rank reads per round of a stream.
  [[nodiscard]] std::int64_t rows_of_round() const;
  /// The samples for all ranks in the next round of a stream; null at the end.
  std::unique_ptr<LoadedBatch> read_round(Worker& worker);
  /// The range of a round's samples that this rank gets. Indices from `rows` on
  /// stand for repeated samples.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> share_of_round(
      std::int64_t rows) const;
  [[nodiscard]] bool has_share(const LoadedBatch* round) const;
  std::unique_ptr<LoadedBatch> claim_from_stream(Worker& worker);
  void keep_share(LoadedBatch& round);

  std::int64_t next_number_ = 0;
  /// True once the first round of a stream was read.
  bool has_begun_ = false;
  bool stream_has_ended_ = false;
  std::int64_t num_read_ = 0;
  /// A round that was read but not claimed yet.
  std::unique_ptr<LoadedBatch> ahead_ = nullptr;
  /// The samples that pad the last round.
  std::unique_ptr<LoadedBatch> first_samples_ = nullptr;
};

}  // namespace accelerate::detail
