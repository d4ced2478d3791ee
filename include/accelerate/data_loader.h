#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/batch_transfer.h>
#include <accelerate/data_loader_options.h>
#include <accelerate/export.h>
#include <accelerate/nested.h>
#include <accelerate/samplers.h>
#include <accelerate/state_dict.h>
#include <accelerate/tensor_dataset.h>

namespace accelerate {

namespace detail {

/// What prepare() tells a loader.
struct LoaderContext {
  int batch_rank = 0;
  int batch_count = 1;
  at::Device device = at::kCPU;
  std::uint64_t seed = 0;
  /// All ranks, and each one's batch rank, for dispatching.
  Group group = {};
  std::vector<int> batch_ranks = {0};
  /// A pass begins; a batch is about to be handed out (the last of the pass?
  /// how many of its round's samples are real, if it was filled up); the pass
  /// ends, or was left.
  std::function<void()> begin = nullptr;
  std::function<void(bool is_last, std::int64_t remainder)> on_batch = nullptr;
  std::function<void()> end = nullptr;
  /// Fill the last round up on a single rank too, as Accelerate's shards do
  /// when they are used directly.
  bool fills_up_alone = false;
  /// Of passes that begin now, in place of the loader's own option.
  std::function<std::optional<bool>()> even_batches = nullptr;
};

/// Which samples a rank reads, batch by batch: its own ones, or, where rank 0
/// reads for all, those of whole rounds.
class ACCELERATE_API BatchSource {
 public:
  BatchSource(std::int64_t num_samples, const DataLoaderOptions& options);
  ~BatchSource();
  BatchSource(BatchSource&&) noexcept;
  BatchSource& operator=(BatchSource&&) noexcept;

  void attach(LoaderContext context, bool is_dispatching);
  [[nodiscard]] bool is_dispatching() const;
  [[nodiscard]] const LoaderContext& context() const;
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t round_size() const;
  /// Rows of this rank's batch in a full round.
  [[nodiscard]] std::int64_t rank_batch_size() const;
  /// What the pass under way does with its last round.
  [[nodiscard]] bool fills_up() const;
  [[nodiscard]] std::uint64_t epoch() const;
  void set_epoch(std::uint64_t epoch);
  [[nodiscard]] std::uint64_t seed() const;
  /// Samples, or batches of a batch sampler, that the pass leaves out at its
  /// beginning, because they were read before.
  [[nodiscard]] std::int64_t first() const;
  [[nodiscard]] StateDict state_dict(std::int64_t num_given) const;
  /// `num_samples` below 0: unknown.
  void load_state_dict(const StateDict& state, std::int64_t num_samples);

  /// Starts a pass; ends one that was left.
  void begin_pass();
  void end_pass() noexcept;
  /// Indices of batch `index` of the pass under way.
  [[nodiscard]] std::vector<std::int64_t> indices(std::int64_t index) const;
  [[nodiscard]] std::int64_t remainder(std::int64_t index) const;
  /// A batch is about to be handed out.
  void announce(bool is_last, std::int64_t remainder) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

ACCELERATE_API at::Tensor stack_rows(const std::vector<at::Tensor>& rows);

template <class D>
concept BatchDataset = requires(D& dataset, std::span<const std::int64_t> indices) {
  dataset.get_batch(indices);
};

template <class D>
concept StreamDataset = requires(D& dataset) {
  { static_cast<bool>(dataset.next()) };
  *dataset.next();
};
template <class D>
concept SizedDataset = requires(const D& dataset) { dataset.size(); };

template <class D>
std::int64_t size_of(const D& dataset) {
  const auto size = dataset.size();
  if constexpr (requires { *size; }) {
    return static_cast<std::int64_t>(*size);  // torch::data datasets
  } else {
    return static_cast<std::int64_t>(size);
  }
}

/// The end of every loader.
struct EndOfPass {};

/// Throw ConfigError.
[[noreturn]] ACCELERATE_API void throw_shuffled_stream();
[[noreturn]] ACCELERATE_API void throw_not_dispatchable();

}  // namespace detail

/// Joins samples into a batch of the same form: corresponding tensors are
/// stacked along a new dimension 0; the rest is as in the first sample. Throws
/// if shapes differ.
struct DefaultCollate {
  template <NestedTensors Sample>
  Sample operator()(std::vector<Sample> samples) const {
    std::vector<std::vector<at::Tensor>> columns;
    for (const Sample& sample : samples) {
      std::size_t next = 0;
      for (const at::Tensor& tensor : tensors_of(sample)) {
        if (columns.size() <= next) columns.emplace_back();
        columns[next++].push_back(tensor);
      }
    }
    Sample batch = std::move(samples.front());
    std::size_t next = 0;
    visit_tensors(batch, [&](at::Tensor& tensor) { tensor = detail::stack_rows(columns[next++]); });
    return batch;
  }
};

/// A loader's pass that begins later: `skip_first_batches(loader, n)`.
template <class Loader>
class SkippedBatches {
 public:
  SkippedBatches(Loader& loader, std::int64_t num_batches)
      : loader_(&loader), num_batches_(num_batches) {}
  auto begin() const { return loader_->begin_after(num_batches_); }
  [[nodiscard]] detail::EndOfPass end() const { return {}; }

 private:
  Loader* loader_;
  std::int64_t num_batches_;
};

/// Batches of a dataset, each rank its own.
///
/// A dataset is one of two kinds:
/// * random access: `size()`, and either `get_batch(std::span<const
///   std::int64_t> indices)`, returning a batch, or `get(index)`, returning a
///   sample that `Collate` joins (torch::data datasets do);
/// * a stream: `next()`, returning an optional sample, empty at the end. If it
///   has `set_epoch(epoch)` or `reset()`, they are called, in that order,
///   before each pass; `size()`, if it has one, is the number of samples. It
///   gives the same samples on every rank, or is read by rank 0 alone
///   (dispatch_batches), and knows no `shuffle`.
///
/// Batches that are nested values (nested.h) arrive on the accelerator's
/// device; others are left alone.
///
/// Made by the user, moved into Accelerator::prepare(), read by a range-for:
///
///     for (auto& [inputs, labels] : loader) …
///
/// One pass at a time; it may be left early, and a new one starts a new epoch.
/// Not for several threads at once.
template <class Dataset, class Collate = DefaultCollate>
class DataLoader {
  static constexpr bool kIsStream = detail::StreamDataset<Dataset>;

 public:
  /// The loader owns the dataset: give a pointer-like dataset to share one.
  /// Throws ConfigError for a batch_size below 1, or a shuffled stream.
  explicit DataLoader(
      Dataset dataset,
      const DataLoaderOptions& options = {},
      Collate collate = {})
      : dataset_(std::move(dataset)),
        collate_(std::move(collate)),
        options_(options),
        source_(num_samples(), options) {
    if (kIsStream && (options.shuffle || options.sampler || options.batch_sampler)) {
      detail::throw_shuffled_stream();
    }
  }

  class Iterator {
   public:
    Iterator(DataLoader& loader, std::int64_t num_skipped) : loader_(&loader) {
      loader.skip(num_skipped);
      read();
    }
    ~Iterator() {
      if (loader_ != nullptr) loader_->end_pass();
    }
    Iterator(Iterator&& other) noexcept
        : loader_(std::exchange(other.loader_, nullptr)), batch_(std::move(other.batch_)) {}
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;

    auto& operator*() { return *batch_; }
    auto* operator->() { return &*batch_; }
    Iterator& operator++() {
      read();
      return *this;
    }
    bool operator==(detail::EndOfPass) const { return !batch_.has_value(); }

   private:
    void read() {
      // The old batch's memory serves the new one.
      batch_.reset();
      if (auto batch = loader_->next_batch()) {
        batch_.emplace(*std::move(batch));
        ++loader_->pass_.num_given;
      }
    }

    DataLoader* loader_;
    std::optional<std::decay_t<decltype(*std::declval<DataLoader&>().next_batch())>> batch_;
  };

  /// Begins a pass.
  Iterator begin() { return begin_after(0); }
  /// Begins a pass after its first `num_batches` batches of each rank: at once
  /// with random access; a stream is read and what it gives forgotten.
  Iterator begin_after(std::int64_t num_batches) {
    begin_pass();
    return Iterator(*this, num_batches);
  }
  [[nodiscard]] detail::EndOfPass end() const { return {}; }

  /// Batches that this rank gets in a pass.
  [[nodiscard]] std::int64_t size() const
    requires detail::SizedDataset<Dataset>
  {
    return source_.size();
  }
  /// Samples of all ranks together in one micro-step; 0 with a batch sampler,
  /// whose batches differ.
  [[nodiscard]] std::int64_t total_batch_size() const { return source_.round_size(); }
  /// Samples of the whole dataset.
  [[nodiscard]] std::int64_t total_dataset_length() const
    requires detail::SizedDataset<Dataset>
  {
    return detail::size_of(dataset_);
  }
  /// The number of the next pass, or of the one under way; the first is 0.
  [[nodiscard]] std::uint64_t epoch() const { return source_.epoch(); }
  /// Makes the next pass that of `epoch`.
  void set_epoch(std::uint64_t epoch) { source_.set_epoch(epoch); }
  /// Where the loader is: epoch, position in the global order, seed. The batch in
  /// hand counts as read. Equal on all ranks; with uneven batches take rank 0's.
  [[nodiscard]] StateDict state_dict() const { return source_.state_dict(pass_.num_given); }
  /// The next pass goes on where `state` was taken, in constant time with
  /// random access and also on another number of ranks or with another batch
  /// size; later passes are whole. A stream is read up to that place. Throws
  /// CheckpointError for a state of something else, ConfigError inside a pass.
  void load_state_dict(const StateDict& state) {
    source_.load_state_dict(state, length_of_pass());
  }
  [[nodiscard]] const Dataset& dataset() const { return dataset_; }
  [[nodiscard]] const DataLoaderOptions& options() const { return options_; }

  /// For prepare(). Throws ConfigError if batches cannot be split or sent.
  void attach(detail::LoaderContext context) {
    const bool can_dispatch = detail::Dispatchable<Batch>;
    if (options_.dispatch_batches.value_or(false) && !can_dispatch) {
      detail::throw_not_dispatchable();
    }
    const bool is_dispatching = options_.dispatch_batches.value_or(kIsStream && can_dispatch) &&
        context.group.size() > 1;
    source_.attach(std::move(context), is_dispatching);
  }

 private:
  std::int64_t num_samples() const {
    if constexpr (detail::SizedDataset<Dataset>) {
      return detail::size_of(dataset_);
    } else {
      return 0;
    }
  }
  // In the unit of positions; below 0: unknown.
  [[nodiscard]] std::int64_t length_of_pass() const {
    if (options_.batch_sampler) return options_.batch_sampler->size();
    if (options_.sampler) return options_.sampler->size();
    if constexpr (detail::SizedDataset<Dataset>) {
      return detail::size_of(dataset_);
    } else {
      return -1;
    }
  }
  static auto sample_type() {
    if constexpr (kIsStream) {
      return std::type_identity<std::decay_t<decltype(*std::declval<Dataset&>().next())>>{};
    } else if constexpr (detail::BatchDataset<Dataset>) {
      return std::type_identity<void>{};
    } else {
      return std::type_identity<std::decay_t<decltype(std::declval<Dataset&>().get(0))>>{};
    }
  }
  using Sample = typename decltype(sample_type())::type;
  static auto batch_type() {
    if constexpr (!kIsStream && detail::BatchDataset<Dataset>) {
      return std::type_identity<std::decay_t<decltype(std::declval<Dataset&>().get_batch(
          std::span<const std::int64_t>()))>>{};
    } else {
      return std::type_identity<std::decay_t<decltype(std::declval<Collate&>()(
          std::vector<Sample>()))>>{};
    }
  }
  using Batch = typename decltype(batch_type())::type;
  // Without a sample type there is never one.
  using Samples = std::vector<std::conditional_t<std::is_void_v<Sample>, char, Sample>>;

  void begin_pass() {
    source_.begin_pass();
    forget_pass();
    if constexpr (kIsStream) {
      if (!reads()) return;
      if constexpr (requires { dataset_.set_epoch(std::uint64_t{}); }) {
        dataset_.set_epoch(source_.epoch());
      }
      if constexpr (requires { dataset_.reset(); }) dataset_.reset();
      for (std::int64_t i = 0; i < source_.first() && !pass_.stream_has_ended; ++i) {
        pass_.stream_has_ended = !dataset_.next();
      }
    }
  }
  void end_pass() noexcept {
    source_.end_pass();
    forget_pass();
  }
  void forget_pass() noexcept {
    pass_ = {};
  }
  // Whether this rank touches the dataset.
  [[nodiscard]] bool reads() const {
    return !source_.is_dispatching() || source_.context().group.rank() == 0;
  }

  void skip(std::int64_t num_batches) {
    pass_.num_given += std::max<std::int64_t>(num_batches, 0);
    if (!reads() || num_batches <= 0) return;
    if constexpr (detail::Dispatchable<Batch>) {
      if (source_.is_dispatching()) {
        // What the last round is filled up with is still the first's.
        pass_.first_batch = read_round();
        if constexpr (kIsStream) {
          for (std::int64_t i = 1; i < num_batches && read_samples(); ++i) {}
        }
        pass_.index = num_batches;
        return;
      }
    }
    if constexpr (kIsStream) {
      for (std::int64_t i = 0; i < num_batches; ++i) {
        const auto round = read_samples();
        if (!round) break;
        keep_first(*round);
      }
    } else {
      pass_.index = num_batches;
    }
  }

  // Of this rank; nothing at the end.
  std::optional<Batch> next_batch() {
    std::optional<Batch> batch;
    if constexpr (detail::Dispatchable<Batch>) {
      if (source_.is_dispatching()) {
        batch = next_dispatched();
        return to_device(std::move(batch));
      }
    }
    if constexpr (kIsStream) {
      batch = next_of_stream();
    } else if (pass_.index < source_.size()) {
      const std::int64_t index = pass_.index++;
      batch = load(source_.indices(index));
      source_.announce(index + 1 == source_.size(), source_.remainder(index));
    }
    return to_device(std::move(batch));
  }

  std::optional<Batch> to_device(std::optional<Batch> batch) const {
    if constexpr (NestedTensors<Batch>) {
      if (batch) {
        batch = send_to_device(
            *std::move(batch), source_.context().device, options_.non_blocking);
      }
    }
    return batch;
  }

  Batch load(const std::vector<std::int64_t>& indices) {
    if constexpr (detail::BatchDataset<Dataset>) {
      return dataset_.get_batch(std::span<const std::int64_t>(indices));
    } else {
      std::vector<Sample> samples;
      samples.reserve(indices.size());
      for (const std::int64_t i : indices) samples.push_back(dataset_.get(i));
      return collate_(std::move(samples));
    }
  }

  // The samples of all ranks in the next round of a stream.
  std::optional<Samples> read_samples() {
    const auto size = static_cast<std::size_t>(source_.round_size());
    Samples samples;
    while (!pass_.stream_has_ended && samples.size() < size) {
      if (auto sample = dataset_.next()) {
        samples.push_back(*std::move(sample));
      } else {
        pass_.stream_has_ended = true;
      }
    }
    if (samples.empty() || (samples.size() < size && options_.drop_last)) return std::nullopt;
    return samples;
  }
  void keep_first(const Samples& round) {
    if (source_.fills_up() && pass_.first_samples.empty()) pass_.first_samples = round;
  }

  // Which of a round's samples this rank gets; past `rows` they are repeated.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> share_of_round(std::int64_t rows) const {
    const std::int64_t size = source_.rank_batch_size();
    const std::int64_t begin = source_.context().batch_rank * size;
    const std::int64_t end = begin + size;
    return {begin, source_.fills_up() ? end : std::min(end, rows)};
  }
  [[nodiscard]] bool has_share(const std::optional<Samples>& round) const {
    if (!round) return false;
    const auto [begin, end] = share_of_round(static_cast<std::int64_t>(round->size()));
    return begin < end;
  }

  // Every rank reads all and keeps its share.
  std::optional<Batch> next_of_stream() {
    if (!std::exchange(pass_.has_begun, true)) pass_.ahead_samples = read_samples();
    if (!has_share(pass_.ahead_samples)) return std::nullopt;
    const Samples round = *std::exchange(pass_.ahead_samples, std::nullopt);
    keep_first(round);
    pass_.ahead_samples = read_samples();
    const auto rows = static_cast<std::int64_t>(round.size());
    const auto [begin, end] = share_of_round(rows);
    Samples mine;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto position = static_cast<std::size_t>(i < rows ? i : i - rows);
      mine.push_back(
          i < rows ? round[position] : pass_.first_samples[position % pass_.first_samples.size()]);
    }
    const bool is_filled = source_.fills_up() && rows < source_.round_size();
    source_.announce(!has_share(pass_.ahead_samples), is_filled ? rows : 0);
    return collate_(std::move(mine));
  }

  // Of all ranks together.
  std::optional<Batch> read_round() {
    if constexpr (kIsStream) {
      auto samples = read_samples();
      if (!samples) return std::nullopt;
      return collate_(*std::move(samples));
    } else {
      if (pass_.index >= source_.size()) return std::nullopt;
      return load(source_.indices(pass_.index++));
    }
  }

  std::optional<Batch> next_dispatched() {
    if (pass_.has_ended) return std::nullopt;
    const detail::LoaderContext& context = source_.context();
    detail::RoundHeader header;
    std::vector<detail::RoundSlice> slices;
    std::exception_ptr failure;
    if (reads()) {
      try {
        slices = slice_next_round(header);
      } catch (const std::exception& error) {
        failure = std::current_exception();
        header.error = *error.what() != '\0' ? error.what() : "unknown error";
      }
    }
    detail::RoundSlice mine = detail::scatter_round(context.group, header, slices);
    if (failure) std::rethrow_exception(failure);
    pass_.has_ended = header.is_last;
    if (!header.has_batch) return std::nullopt;
    source_.announce(
        header.is_last, header.rows % context.batch_count == 0 ? 0 : header.rows);
    return detail::received_batch<Batch>(std::move(mine));
  }

  std::vector<detail::RoundSlice> slice_next_round(detail::RoundHeader& header) {
    if (!std::exchange(pass_.has_begun, true)) pass_.ahead_batch = read_round();
    const std::optional<Batch> round = std::exchange(pass_.ahead_batch, std::nullopt);
    if (!round) return {};
    // One ahead, because only then is the last round known to be it.
    pass_.ahead_batch = read_round();
    if (!pass_.first_batch) pass_.first_batch = round;
    const detail::LoaderContext& context = source_.context();
    const std::int64_t rows = detail::rows_of(*round);
    const std::int64_t share = (rows + context.batch_count - 1) / context.batch_count;
    std::vector<detail::RoundSlice> slices;
    for (const int batch_rank : context.batch_ranks) {
      const std::int64_t begin = batch_rank * share;
      slices.push_back(detail::slice_to_send(
          detail::slice_filled(*round, *pass_.first_batch, begin, begin + share)));
    }
    header.has_batch = true;
    header.is_last = !pass_.ahead_batch.has_value();
    header.rows = rows;
    return slices;
  }

  struct Pass {
    /// Of the next batch, with random access.
    std::int64_t index = 0;
    /// Batches given out or skipped.
    std::int64_t num_given = 0;
    bool has_begun = false;
    bool has_ended = false;
    bool stream_has_ended = false;
    /// Read, not yet handed out.
    std::optional<Samples> ahead_samples = std::nullopt;
    std::optional<Batch> ahead_batch = std::nullopt;
    /// Of the first round: what the last is filled up with.
    Samples first_samples = {};
    std::optional<Batch> first_batch = std::nullopt;
  };

  Dataset dataset_;
  Collate collate_;
  DataLoaderOptions options_;
  detail::BatchSource source_;
  Pass pass_;
};
template <class Dataset>
DataLoader(Dataset) -> DataLoader<Dataset>;
template <class Dataset>
DataLoader(Dataset, DataLoaderOptions) -> DataLoader<Dataset>;
template <class Dataset, class Collate>
DataLoader(Dataset, DataLoaderOptions, Collate) -> DataLoader<Dataset, Collate>;

/// The next pass over `loader`, without the first `num_batches` batches of each
/// rank: `for (auto& batch : skip_first_batches(loader, 100))`. Later passes
/// are whole.
template <class Loader>
SkippedBatches<Loader> skip_first_batches(Loader& loader, std::int64_t num_batches = 0) {
  return {loader, num_batches};
}

}  // namespace accelerate
