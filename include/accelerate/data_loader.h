#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <accelerate/batch_iterator.h>
#include <accelerate/collate.h>
#include <accelerate/data_loader_options.h>
#include <accelerate/detail/dataset_concepts.h>
#include <accelerate/detail/dataset_engine.h>
#include <accelerate/detail/handles.h>
#include <accelerate/detail/loader_context.h>
#include <accelerate/detail/loader_engine.h>
#include <accelerate/detail/typed_dataset.h>
#include <accelerate/prefetch_report.h>
#include <accelerate/state_dict.h>
#include <accelerate/tensor_dataset.h>

namespace accelerate {

/// A pass that skips the first batches; see skip_first_batches().
template <class Loader>
class SkippedBatches {
 public:
  SkippedBatches(Loader& loader, std::int64_t num_batches)
      : loader_(loader.engine()), num_batches_(num_batches) {}
  /// Begins the pass. Throws ConfigError inside another pass.
  auto begin() const {
    return typename Loader::Iterator(loader_, num_batches_);
  }
  /// The end of the pass.
  [[nodiscard]] detail::EndOfPass end() const { return {}; }

 private:
  std::weak_ptr<detail::LoaderEngine> loader_;
  std::int64_t num_batches_;
};

/// Reads the batches of a dataset, different ones on each rank.
///
/// A dataset is one of two kinds:
/// * random access: `size()`, and either `get_batch(std::span<const
///   std::int64_t> indices)`, returning a batch, or `get(index)`, returning a
///   sample that `Collate` collates (torch::data datasets do). With `get(index,
///   at::Generator&)`, or `get_batch(indices, at::Generator&)`, it gets a
///   generator for its random numbers, which depends only on the seed, the
///   epoch and the position in the order (for get_batch: that of the first
///   sample), not on workers or on where a pass was resumed;
/// * a stream: `next()`, returning an optional sample, empty at the end. If it
///   has `set_epoch(epoch)` or `reset()`, they are called, in that order,
///   before each pass; `size()`, if it has one, is the number of samples. It
///   must give the same samples on every rank, or be read by rank 0 alone
///   (dispatch_batches), and cannot be shuffled. It is resumed through
///   `state_dict()` and `load_state_dict()` if it has them, otherwise by
///   reading up to that position.
///
/// `size()` is called before each pass, so a dataset can grow between them. A
/// dataset that holds one rank's shard says so with `bool is_sharded() const`.
///
/// With workers (DataLoaderOptions::num_workers) `get`, `get_batch` and the
/// collate function are called by several threads at once.
///
/// Batches that are nested values (nested.h) arrive on the accelerator's
/// device; others stay where they are.
///
/// The user makes a loader, moves it into Accelerator::prepare(), and reads it
/// with a range-for loop:
///
///     for (auto& [inputs, labels] : loader) …
///
/// One pass at a time; it can be left early, and a new one starts a new epoch.
/// A pass survives moving the loader; once the loader is gone, and beyond the
/// last batch, it throws ConfigError. If rank 0 reads for all
/// (dispatch_batches), all ranks must leave it after the same batch; otherwise
/// the others get an Error at the next one. Exceptions of a dataset or collate
/// function reach the loop as DataError. A loader must not be used by several
/// threads at once.
template <class Dataset, class Collate = DefaultCollate>
class DataLoader {
  using Typed = detail::TypedDataset<Dataset, Collate>;

 public:
  /// The type of a batch: what `get_batch` or the collate function returns.
  using Batch = typename Typed::Batch;
  /// Hands out the batches of a pass.
  using Iterator = BatchIterator<Batch>;
  /// Returns rows [begin, end) of a round. The last round may have fewer rows;
  /// the function then decides how to fill up the slice.
  using SliceFunction = typename Typed::SliceFunction;

  /// The loader owns the dataset: pass a pointer-like dataset to share one.
  /// Throws ConfigError for options that are invalid or contradictory.
  explicit DataLoader(
      Dataset dataset,
      const DataLoaderOptions& options = {},
      Collate collate = {})
      : engine_(std::make_shared<detail::DatasetEngine>(
            std::make_unique<Typed>(std::move(dataset), std::move(collate)),
            options)) {}
  DataLoader(DataLoader&&) noexcept = default;
  DataLoader& operator=(DataLoader&&) noexcept = default;
  ~DataLoader() = default;

  /// Begins a pass. Throws ConfigError inside another pass over this loader.
  Iterator begin() { return begin_after(0); }
  /// Begins a pass after each rank's first `num_batches` batches: in constant
  /// time with random access, by reading and dropping samples with a stream.
  Iterator begin_after(std::int64_t num_batches) {
    return Iterator(engine(), num_batches);
  }
  /// The end of the pass.
  [[nodiscard]] detail::EndOfPass end() const { return {}; }

  /// Number of batches that this rank gets in a pass.
  [[nodiscard]] std::int64_t size() const
    requires detail::SizedDataset<Dataset>
  {
    return engine_->size();
  }
  /// Number of samples of all ranks together in one micro-step; 0 with a batch
  /// sampler, whose batches differ.
  [[nodiscard]] std::int64_t total_batch_size() const {
    return engine_->total_batch_size();
  }
  /// Number of samples of the entire dataset.
  [[nodiscard]] std::int64_t total_dataset_length() const
    requires detail::SizedDataset<Dataset>
  {
    return engine_->dataset().num_samples();
  }
  /// The epoch of the pass in progress, or else of the next one; the first is
  /// 0.
  [[nodiscard]] std::uint64_t epoch() const { return engine_->epoch(); }
  /// Sets the epoch of the next pass.
  void set_epoch(std::uint64_t epoch) { engine_->set_epoch(epoch); }

  /// The position of the loader: epoch, position in the global order, seed, and
  /// the state of a stream that has one. The current batch counts as read;
  /// batches that workers have ready do not. Equal on all ranks; with uneven
  /// batches, or if rank 0 alone reads, use rank 0's.
  [[nodiscard]] StateDict state_dict() const { return engine_->state_dict(); }
  /// Makes the next pass continue where `state` was taken, in constant time
  /// with random access, even on a different number of ranks or with a
  /// different batch size; later passes are complete. A stream continues from
  /// its own state, or is read up to that position. Throws CheckpointError for
  /// a state that does not fit, ConfigError inside a pass.
  void load_state_dict(const StateDict& state) {
    engine_->load_state_dict(state);
  }

  /// With dispatch_batches: replaces the function by which rank 0 slices a
  /// round. The default slices tensors and lists by rows, of which all must
  /// have equally many; numbers and strings go to every rank.
  void slice_fn_for_dispatch(SliceFunction slice)
    requires detail::Dispatchable<Batch>
  {
    typed().slice_function = std::move(slice);
  }

  /// The report of the pass in progress, or else of the last one.
  [[nodiscard]] PrefetchReport prefetch_report() const {
    return engine_->report();
  }
  /// The dataset that the loader owns.
  [[nodiscard]] const Dataset& dataset() const { return typed().dataset; }
  /// The options that the loader was made with; once it is prepared, fields
  /// that they left unset have the accelerator's defaults.
  [[nodiscard]] const DataLoaderOptions& options() const {
    return engine_->options();
  }

  /// Called by prepare(). Throws ConfigError if batches cannot be sliced or
  /// sent, or if the ranks' loaders do not match.
  void attach(detail::LoaderContext context) {
    engine_->attach(std::move(context));
  }

 private:
  template <class Loader>
  friend class SkippedBatches;

  [[nodiscard]] std::weak_ptr<detail::LoaderEngine> engine() const {
    return engine_->weak_from_this();
  }
  [[nodiscard]] Typed& typed() const {
    return static_cast<Typed&>(engine_->dataset());
  }

  detail::MovedCheck<std::shared_ptr<detail::DatasetEngine>, "DataLoader">
      engine_;
};
template <class Dataset>
DataLoader(Dataset) -> DataLoader<Dataset>;
template <class Dataset>
DataLoader(Dataset, DataLoaderOptions) -> DataLoader<Dataset>;
template <class Dataset, class Collate>
DataLoader(Dataset, DataLoaderOptions, Collate) -> DataLoader<Dataset, Collate>;

/// The next pass over `loader`, without the first `num_batches` batches of each
/// rank: `for (auto& batch : skip_first_batches(loader, 100))`. Later passes
/// are complete.
template <class Loader>
SkippedBatches<Loader> skip_first_batches(
    Loader& loader,
    std::int64_t num_batches = 0) {
  return {loader, num_batches};
}

}  // namespace accelerate
