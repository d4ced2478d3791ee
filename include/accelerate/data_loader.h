#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/collate.h>
#include <accelerate/data_loader_options.h>
#include <accelerate/detail/batch_source.h>
#include <accelerate/detail/batch_transfer.h>
#include <accelerate/detail/dataset_concepts.h>
#include <accelerate/detail/dataset_fetcher.h>
#include <accelerate/detail/handles.h>
#include <accelerate/detail/loader_link.h>
#include <accelerate/detail/worker_pool.h>
#include <accelerate/error.h>
#include <accelerate/export.h>
#include <accelerate/nested.h>
#include <accelerate/prefetch_report.h>
#include <accelerate/state_dict.h>
#include <accelerate/tensor_dataset.h>

namespace accelerate {

namespace detail {

/// The end iterator of every loader.
struct EndOfPass {};

/// Throws the ConfigError for a dataset that cannot be dispatched.
[[noreturn]] ACCELERATE_API void throw_not_dispatchable();
/// Throws ConfigError if batches without tensors are to be divided.
ACCELERATE_API void require_sequences(
    const BatchSequences& sequences,
    bool has_tensors);

/// Divides the sequences of a batch, if there are any to divide.
template <class Batch>
void divide_sequences(
    const LoaderContext& context,
    const BatchSequences& sequences,
    Batch& batch) {
  if constexpr (NestedTensors<Batch>) {
    if (sequences.dims.empty() || !context.divide) return;
    std::vector<at::Tensor*> tensors;
    visit_tensors(batch, TensorVisitor{[&](at::Tensor& tensor) {
                    tensors.push_back(&tensor);
                  }});
    context.divide(sequences, tensors);
  }
}
/// Throws the Error for a new pass while a worker that was left behind is still
/// inside the stream or sampler.
[[noreturn]] ACCELERATE_API void throw_stuck(const std::string& where);
ACCELERATE_API void warn_left_behind(
    const Logger& logger,
    const std::string& where);

}  // namespace detail

/// A pass that skips the first batches; see skip_first_batches().
template <class Loader>
class SkippedBatches {
 public:
  SkippedBatches(Loader& loader, std::int64_t num_batches)
      : loader_(loader.place()), num_batches_(num_batches) {}
  auto begin() const { return loader_.require().begin_after(num_batches_); }
  [[nodiscard]] detail::EndOfPass end() const { return {}; }

 private:
  detail::LoaderPlace<Loader> loader_;
  std::int64_t num_batches_;
};

/// Reads the batches of a dataset, different ones on each rank.
///
/// A dataset is one of two kinds:
/// * random access: `size()`, and either `get_batch(std::span<const
///   std::int64_t> indices)`, returning a batch, or `get(index)`, returning a
///   sample that `Collate` collates (torch::data datasets do). With
///   `get(index, at::Generator&)`, or `get_batch(indices, at::Generator&)`, it
///   gets a generator for its random numbers, which depends only on the seed,
///   the epoch and the position in the order (for get_batch: that of the first
///   sample), not on workers or on where a pass was resumed;
/// * a stream: `next()`, returning an optional sample, empty at the end. If it
///   has `set_epoch(epoch)` or `reset()`, they are called, in that order,
///   before each pass; `size()`, if it has one, is the number of samples. It
///   must give the same samples on every rank, or be read by rank 0 alone
///   (dispatch_batches), and cannot be shuffled. It is resumed through
///   `state_dict()` and `load_state_dict()` if it has them, otherwise by
///   reading on.
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
/// A pass goes on if the loader is moved; if the loader is gone, and at a batch
/// beyond the end, it throws ConfigError.
/// If rank 0 reads for all (dispatch_batches), all ranks must leave it after
/// the same batch; otherwise those that stay get an Error at the next one.
/// Exceptions of a dataset or collate function reach the loop as DataError. A
/// loader must not be used by several threads at once.
template <class Dataset, class Collate = DefaultCollate>
class DataLoader : public detail::LoaderLink<DataLoader<Dataset, Collate>> {
  using Fetcher = detail::DatasetFetcher<Dataset, Collate>;
  using Job = typename Fetcher::Job;

 public:
  using Batch = typename Fetcher::Batch;
  /// Returns rows [begin, end) of a round. The last round may have fewer rows;
  /// the function then decides how to fill up the slice.
  using SliceFunction = std::function<
      Batch(const Batch& round, std::int64_t begin, std::int64_t end)>;

  /// The loader owns the dataset: pass a pointer-like dataset to share one.
  /// Throws ConfigError for options that are invalid or contradictory.
  explicit DataLoader(
      Dataset dataset,
      const DataLoaderOptions& options = {},
      Collate collate = {})
      : fetcher_(std::make_shared<Fetcher>(
            std::move(dataset),
            std::move(collate),
            options)) {}

  class Iterator {
   public:
    Iterator(DataLoader& loader, std::int64_t num_skipped)
        : loader_(loader.place()) {
      try {
        loader.skip(num_skipped);
        read();
      } catch (...) {
        loader.end_pass();
        throw;
      }
    }
    ~Iterator() { end(); }
    Iterator(Iterator&& other) noexcept
        : loader_(std::move(other.loader_)), batch_(std::move(other.batch_)) {
      other.batch_.reset();
    }
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;

    Batch& operator*() {
      if (!batch_) detail::throw_no_batch();
      return *batch_;
    }
    Batch* operator->() { return &**this; }
    Iterator& operator++() {
      read();
      return *this;
    }
    bool operator==(detail::EndOfPass) const { return !batch_.has_value(); }

   private:
    void read() {
      // The old batch's memory is reused for the new one.
      batch_.reset();
      if (loader_.is_released()) return;
      loader_.require().next_batch(batch_);
      if (!batch_) end();
    }
    void end() {
      if (DataLoader* const loader = loader_.get()) loader->end_pass();
      loader_.release();
    }

    /// Released once the pass has ended.
    detail::LoaderPlace<DataLoader> loader_;
    std::optional<Batch> batch_;
  };

  /// Begins a pass. Throws ConfigError inside another pass over this loader.
  Iterator begin() { return begin_after(0); }
  /// Begins a pass after each rank's first `num_batches` batches: in constant
  /// time with random access, by reading and dropping samples with a stream.
  Iterator begin_after(std::int64_t num_batches) {
    begin_pass();
    return Iterator(*this, num_batches);
  }
  [[nodiscard]] detail::EndOfPass end() const { return {}; }

  /// Number of batches that this rank gets in a pass.
  [[nodiscard]] std::int64_t size() const
    requires detail::SizedDataset<Dataset>
  {
    return source().size();
  }
  /// Number of samples of all ranks together in one micro-step; 0 with a batch
  /// sampler, whose batches differ.
  [[nodiscard]] std::int64_t total_batch_size() const {
    return source().round_size();
  }
  /// Number of samples of the entire dataset.
  [[nodiscard]] std::int64_t total_dataset_length() const
    requires detail::SizedDataset<Dataset>
  {
    return fetcher_->num_samples();
  }
  /// The epoch of the pass in progress, or else of the next one; the first is
  /// 0.
  [[nodiscard]] std::uint64_t epoch() const { return source().epoch(); }
  /// Sets the epoch of the next pass.
  void set_epoch(std::uint64_t epoch) { source().set_epoch(epoch); }

  /// The position of the loader: epoch, position in the global order, seed, and
  /// the state of a stream that has one. The current batch counts as read;
  /// batches that workers have ready do not. Equal on all ranks; with uneven
  /// batches, or if rank 0 alone reads, use rank 0's.
  [[nodiscard]] StateDict state_dict() const {
    StateDict state = source().state_dict(num_given(), pass_.has_ended);
    const bool is_inside =
        source().is_reading() ? !pass_.has_ended : stream_state_.has_value();
    if (stream_state_ && is_inside) state.set("stream", *stream_state_);
    return state;
  }
  /// Makes the next pass continue where `state` was taken, in constant time
  /// with random access, even on a different number of ranks or with a
  /// different batch size; later passes are complete. A stream continues from
  /// its own state, or is read up to that position. Throws CheckpointError for
  /// a state that does not fit, ConfigError inside a pass.
  void load_state_dict(const StateDict& state) {
    if (!stuck_.empty()) detail::throw_stuck(stuck_);
    source().load_state_dict(state);
    stream_state_.reset();
    // At 0 the saved pass had ended.
    const bool is_inside = source().first() > 0;
    if (is_inside && state.contains("stream")) {
      stream_state_ = state.template get<StateDict>("stream");
    }
  }

  /// With dispatch_batches: replaces the function by which rank 0 slices a
  /// round. The default slices its tensors and lists by rows, all of which must
  /// have as many; every rank gets other numbers and strings.
  void slice_fn_for_dispatch(SliceFunction slice)
    requires detail::Dispatchable<Batch>
  {
    slice_ = std::move(slice);
  }

  /// The report of the pass in progress, or else of the last one.
  [[nodiscard]] PrefetchReport prefetch_report() const { return report_; }
  [[nodiscard]] const Dataset& dataset() const { return fetcher_->dataset; }
  /// The options that the loader was made with; once it is prepared, fields
  /// that they left unset have the accelerator's defaults.
  [[nodiscard]] const DataLoaderOptions& options() const {
    return fetcher_->options;
  }

  /// Called by prepare(). Throws ConfigError if batches cannot be sliced or
  /// sent, or if the ranks' loaders do not match.
  void attach(detail::LoaderContext context) {
    DataLoaderOptions resolved =
        detail::with_defaults(source().given(), context.defaults);
    resolved.device_placement = context.device_placement.value_or(
        resolved.device_placement.value_or(context.places_by_default));
    const bool can_dispatch = detail::Dispatchable<Batch>;
    const std::optional<bool> requested = resolved.dispatch_batches;
    if (requested.value_or(false) && !can_dispatch)
      detail::throw_not_dispatchable();
    detail::require_sequences(*resolved.sequences, NestedTensors<Batch>);
    const bool is_default = Fetcher::kIsStream && can_dispatch &&
        !resolved.already_sharded &&
        (*resolved.even_batches || resolved.drop_last);
    const std::shared_ptr<detail::LoaderSlot> slot = context.slot;
    num_passes_ = 0;
    source().attach(std::move(context), requested.value_or(is_default));
    fetcher_->options = std::move(resolved);
    this->link(slot);
  }

 private:
  detail::BatchSource& source() { return fetcher_->source; }
  [[nodiscard]] const detail::BatchSource& source() const {
    return fetcher_->source;
  }

  void begin_pass() {
    if (source().is_reading()) {
      detail::throw_nested_pass(source().epoch(), report_.num_batches);
    }
    if (!stuck_.empty()) detail::throw_stuck(stuck_);
    pass_ = {};
    report_ = {.num_workers = options().num_workers};
    try {
      fetcher_->begin_pass(stream_state_);
    } catch (...) {
      source().end_pass();
      throw;
    }
    ++num_passes_;
  }

  void end_pass() noexcept {
    if (!source().is_reading()) return;
    if (pool_) {
      bool is_claiming = false;
      const std::string left_behind = pool_->stop(is_claiming);
      pool_.reset();
      if (!left_behind.empty())
        detail::warn_left_behind(source().context().logger, left_behind);
      if (is_claiming) {
        stuck_ = left_behind;
        source().abandon_pass();
        return;
      }
    }
    source().end_pass();
    pass_ = {};
    stream_state_.reset();
  }

  void skip(std::int64_t num_batches) {
    if (num_batches <= 0) return;
    pass_.num_skipped = num_batches;
    if (!fetcher_->reads()) return;
    if (source().is_dispatching()) {
      // Reads the first round anyway: it fills up the last one.
      if (auto job = fetcher_->claim(fetcher_->self)) {
        job->run(fetcher_->self);
        pass_.first_round = std::move(job->batch);
      }
      --num_batches;
    }
    fetcher_->skip(num_batches);
  }

  // Number of rounds that the loop has been given.
  [[nodiscard]] std::int64_t num_given() const {
    const bool is_out_of_order = pool_ && !options().in_order;
    return pass_.num_skipped +
        (is_out_of_order ? pool_->num_in_turn() : report_.num_batches);
  }

  // Sets `batch` to the next batch of this rank, or to nothing at the end.
  void next_batch(std::optional<Batch>& batch) {
    const detail::StepPartScope part(
        source().context().steps.get(), detail::StepPart::data);
    const auto start = detail::LoaderClock::now();
    if (pass_.handed_out) {
      report_.loop_seconds += detail::seconds_between(*pass_.handed_out, start);
    }
    if (source().is_dispatching()) {
      if constexpr (detail::Dispatchable<Batch>) receive_round(batch);
    } else if (auto job = next_job()) {
      hand_out(*job, batch);
    }
    if (batch) ++report_.num_batches;
    pass_.handed_out = detail::LoaderClock::now();
    report_.wait_seconds += detail::seconds_between(start, *pass_.handed_out);
  }

  std::unique_ptr<Job> next_job() {
    std::unique_ptr<Job> job;
    if (options().num_workers == 0) {
      job = fetcher_->claim(fetcher_->self);
      if (job) job->run(fetcher_->self);
    } else {
      if (!pool_) start_workers();
      job.reset(static_cast<Job*>(pool_->next().release()));
    }
    if (!job) return nullptr;
    report_.read_seconds += job->read_seconds;
    report_.collate_seconds += job->collate_seconds;
    report_.transfer_seconds += job->transfer_seconds;
    return job;
  }

  void start_workers() {
    const int num_workers = options().num_workers;
    pool_ = std::make_unique<detail::WorkerPool>(
        detail::WorkerPoolOptions{
            .num_workers = num_workers,
            .capacity = std::int64_t{num_workers} *
                options().prefetch_factor.value_or(2),
            .in_order = options().in_order,
            .timeout = options().timeout},
        [fetcher = fetcher_](detail::Worker& worker) {
          return fetcher->claim(worker);
        });
  }

  void hand_out(Job& job, std::optional<Batch>& batch) {
    batch = std::move(job.batch);
    if constexpr (NestedTensors<Batch>) {
      if (job.sent) {
        detail::wait_for_side_stream(job.sent, source().context().device);
        visit_tensors(*batch, TensorVisitor{[](at::Tensor& tensor) {
          if (tensor.defined()) detail::use_on_current_stream(tensor);
        }});
      } else if (
          source().context().device.is_cpu() && fetcher_->places_batches()) {
        batch = send_to_device(*std::move(batch), at::kCPU);
      }
    }
    keep_stream_state(job);
    pass_.has_ended = job.is_last;
    divide(*batch);
    source().announce(job.is_last, job.read.remainder);
  }

  // Only prepared loaders know what to divide, and their options are complete.
  void divide(Batch& batch) {
    if (const auto& sequences = options().sequences)
      detail::divide_sequences(source().context(), *sequences, batch);
  }

  void keep_stream_state(Job& job) {
    // Out of order, earlier batches may not have been handed out yet.
    if (job.stream_state && options().in_order)
      stream_state_ = std::move(job.stream_state);
  }

  // Receives this rank's slice of the next round from rank 0.
  void receive_round(std::optional<Batch>& batch) {
    if (pass_.has_ended) return;
    const detail::LoaderContext& context = source().context();
    detail::RoundHeader header{
        .pass = num_passes_ - 1, .round = report_.num_batches};
    std::vector<detail::RoundSlice> slices;
    std::exception_ptr failure;
    if (fetcher_->reads()) {
      try {
        slices = slice_next_round(header);
      } catch (const std::exception& error) {
        failure = std::current_exception();
        header.error = *error.what() != '\0' ? error.what() : "unknown error";
        header.is_data_error =
            dynamic_cast<const DataError*>(&error) != nullptr;
      }
    }
    const auto sending = detail::LoaderClock::now();
    const detail::RoundSlice mine =
        detail::scatter_round(context.group, header, slices);
    if (failure) std::rethrow_exception(failure);
    pass_.has_ended = header.is_last;
    if (!header.has_batch) return;
    batch = detail::received_batch<Batch>(mine);
    if constexpr (NestedTensors<Batch>) {
      if (fetcher_->places_batches()) {
        batch = send_to_device(
            *std::move(batch),
            context.device,
            options().non_blocking.value_or(false));
      }
    }
    report_.transfer_seconds +=
        detail::seconds_between(sending, detail::LoaderClock::now());
    divide(*batch);
    source().announce(
        header.is_last,
        header.rows % context.batch_count == 0 ? 0 : header.rows);
  }

  std::vector<detail::RoundSlice> slice_next_round(
      detail::RoundHeader& header) {
    const std::unique_ptr<Job> job = next_job();
    if (!job) return {};
    const Batch& round = *job->batch;
    if (!pass_.first_round) pass_.first_round = round;
    keep_stream_state(*job);
    const detail::LoaderContext& context = source().context();
    const std::int64_t rows = detail::rows_of_batch(round);
    const std::int64_t share =
        (rows + context.batch_count - 1) / context.batch_count;
    std::vector<detail::RoundSlice> slices;
    for (const int batch_rank : context.batch_ranks) {
      const std::int64_t begin = batch_rank * share;
      slices.push_back(detail::slice_to_send(
          slice_ ? slice_(round, begin, begin + share)
                 : detail::slice_filled(
                       round, *pass_.first_round, begin, begin + share)));
    }
    header.has_batch = true;
    header.is_last = job->is_last;
    header.rows = rows;
    return slices;
  }

  struct Pass {
    std::int64_t num_skipped = 0;
    /// True once the last batch was handed out.
    bool has_ended = false;
    std::optional<detail::LoaderClock::time_point> handed_out = std::nullopt;
    /// With dispatch_batches: the samples that fill up the last round.
    std::optional<Batch> first_round = std::nullopt;
  };

  detail::MovedCheck<std::shared_ptr<Fetcher>, "DataLoader"> fetcher_;
  SliceFunction slice_ = nullptr;
  Pass pass_;
  /// Passes begun since the loader was prepared.
  std::int64_t num_passes_ = 0;
  PrefetchReport report_;
  /// The state of a stream after the current batch, or the one from which the
  /// next pass continues.
  std::optional<StateDict> stream_state_;
  /// Activity of a worker that was left behind inside a stream; else empty.
  std::string stuck_;
  std::unique_ptr<detail::WorkerPool> pool_;
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
