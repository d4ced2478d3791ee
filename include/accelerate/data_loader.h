#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/nested.h>

namespace accelerate {

struct DataLoaderOptions {
  /// Samples of one rank in one micro-step; of all ranks together with
  /// `split_batches`.
  std::int64_t batch_size = 1;
  /// A new order in every epoch: a keyed permutation, of constant memory and
  /// start time at any size.
  bool shuffle = false;
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
  /// Of the shuffle, with the epoch. Unset: rank 0's torch::manual_seed.
  std::optional<std::uint64_t> data_seed = std::nullopt;
  /// Copy to the device without waiting, for batches in pinned memory.
  bool non_blocking = false;
};

namespace detail {

/// What prepare() tells a loader.
struct LoaderContext {
  int batch_rank = 0;
  int batch_count = 1;
  at::Device device = at::kCPU;
  std::uint64_t seed = 0;
  /// A pass begins; a batch is about to be handed out (the last of the pass?
  /// how many of its round's samples are real, if it was filled up); the pass
  /// ends, or was left.
  std::function<void()> begin = nullptr;
  std::function<void(bool is_last, std::int64_t remainder)> on_batch = nullptr;
  std::function<void()> end = nullptr;
  /// Of passes that begin now, in place of the loader's own option.
  std::function<std::optional<bool>()> even_batches = nullptr;
};

/// Which samples a rank reads, batch by batch.
class ACCELERATE_API BatchSource {
 public:
  BatchSource(std::int64_t num_samples, const DataLoaderOptions& options);
  ~BatchSource();
  BatchSource(BatchSource&&) noexcept;
  BatchSource& operator=(BatchSource&&) noexcept;

  void attach(LoaderContext context);
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t round_size() const;
  [[nodiscard]] std::uint64_t epoch() const;
  void set_epoch(std::uint64_t epoch);

  /// Starts a pass; ends one that was left.
  void begin_pass();
  void end_pass() noexcept;
  /// Indices of batch `index` of the pass under way.
  [[nodiscard]] std::vector<std::int64_t> indices(std::int64_t index) const;
  void announce(std::int64_t index) const;
  [[nodiscard]] at::Device device() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

ACCELERATE_API at::Tensor stack_rows(const std::vector<at::Tensor>& rows);
ACCELERATE_API std::int64_t common_rows(std::span<const at::Tensor> tensors);
ACCELERATE_API at::Tensor take_rows(
    const at::Tensor& tensor,
    std::span<const std::int64_t> indices);

template <class D>
concept BatchDataset = requires(D& dataset, std::span<const std::int64_t> indices) {
  dataset.get_batch(indices);
};

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

/// Tensors with equally many rows; sample i is row i of each. A batch is a
/// tuple of tensors, made by one index_select each, in memory of its own.
template <std::size_t n>
class TensorDataset {
 public:
  /// Throws ConfigError if the numbers of rows differ.
  template <std::same_as<at::Tensor>... Tensors>
    requires(sizeof...(Tensors) == n && n > 0)
  explicit TensorDataset(Tensors... tensors)
      : tensors_{std::move(tensors)...}, size_(detail::common_rows(tensors_)) {}

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] auto get_batch(std::span<const std::int64_t> indices) const {
    return std::apply(
        [&](const auto&... tensor) { return std::tuple{detail::take_rows(tensor, indices)...}; },
        tensors_);
  }

 private:
  std::array<at::Tensor, n> tensors_;
  std::int64_t size_;
};
template <class... Tensors>
TensorDataset(Tensors...) -> TensorDataset<sizeof...(Tensors)>;

/// Batches of a dataset, each rank its own.
///
/// A dataset has `size()`, and either `get_batch(std::span<const std::int64_t>
/// indices)`, returning a batch, or `get(index)`, returning a sample that
/// `Collate` joins (torch::data datasets do). Batches that are nested values
/// (nested.h) arrive on the accelerator's device; others are left alone.
///
/// Made by the user, moved into Accelerator::prepare(), read by a range-for:
///
///     for (auto& [inputs, labels] : loader) …
///
/// One pass at a time; it may be left early, and a new one starts a new epoch.
/// Not for several threads at once.
template <class Dataset, class Collate = DefaultCollate>
class DataLoader {
 public:
  /// The loader owns the dataset: give a pointer-like dataset to share one.
  explicit DataLoader(
      Dataset dataset,
      const DataLoaderOptions& options = {},
      Collate collate = {})
      : dataset_(std::move(dataset)),
        collate_(std::move(collate)),
        options_(options),
        source_(detail::size_of(dataset_), options) {}

  class Iterator {
   public:
    explicit Iterator(DataLoader& loader) : loader_(&loader) { read(); }
    ~Iterator() {
      if (loader_ != nullptr) loader_->source_.end_pass();
    }
    Iterator(Iterator&& other) noexcept
        : loader_(std::exchange(other.loader_, nullptr)),
          index_(other.index_),
          batch_(std::move(other.batch_)) {}
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;

    auto& operator*() { return *batch_; }
    auto* operator->() { return &*batch_; }
    Iterator& operator++() {
      ++index_;
      read();
      return *this;
    }
    bool operator==(detail::EndOfPass) const { return index_ >= loader_->size(); }

   private:
    void read() {
      // The old batch's memory serves the new one.
      batch_.reset();
      if (index_ < loader_->size()) batch_.emplace(loader_->read(index_));
    }

    DataLoader* loader_;
    std::int64_t index_ = 0;
    std::optional<std::decay_t<decltype(std::declval<DataLoader&>().read(0))>> batch_;
  };

  /// Begins a pass.
  Iterator begin() {
    source_.begin_pass();
    return Iterator(*this);
  }
  [[nodiscard]] detail::EndOfPass end() const { return {}; }

  /// Batches that this rank gets in a pass.
  [[nodiscard]] std::int64_t size() const { return source_.size(); }
  /// Samples of all ranks together in one micro-step.
  [[nodiscard]] std::int64_t total_batch_size() const { return source_.round_size(); }
  /// Samples of the whole dataset.
  [[nodiscard]] std::int64_t total_dataset_length() const { return detail::size_of(dataset_); }
  /// The number of the next pass, or of the one under way; the first is 0.
  [[nodiscard]] std::uint64_t epoch() const { return source_.epoch(); }
  /// Makes the next pass that of `epoch`.
  void set_epoch(std::uint64_t epoch) { source_.set_epoch(epoch); }
  [[nodiscard]] const Dataset& dataset() const { return dataset_; }
  [[nodiscard]] const DataLoaderOptions& options() const { return options_; }

  /// For prepare(). Throws ConfigError if batches cannot be split.
  void attach(detail::LoaderContext context) { source_.attach(std::move(context)); }

 private:
  auto read(std::int64_t index) {
    const std::vector<std::int64_t> indices = source_.indices(index);
    auto batch = load(indices);
    if constexpr (NestedTensors<decltype(batch)>) {
      batch = send_to_device(std::move(batch), source_.device(), options_.non_blocking);
    }
    source_.announce(index);
    return batch;
  }
  auto load(const std::vector<std::int64_t>& indices) {
    if constexpr (detail::BatchDataset<Dataset>) {
      return dataset_.get_batch(std::span<const std::int64_t>(indices));
    } else {
      std::vector<std::decay_t<decltype(dataset_.get(0))>> samples;
      samples.reserve(indices.size());
      for (const std::int64_t i : indices) samples.push_back(dataset_.get(i));
      return collate_(std::move(samples));
    }
  }

  Dataset dataset_;
  Collate collate_;
  DataLoaderOptions options_;
  detail::BatchSource source_;
};
template <class Dataset>
DataLoader(Dataset) -> DataLoader<Dataset>;
template <class Dataset>
DataLoader(Dataset, DataLoaderOptions) -> DataLoader<Dataset>;
template <class Dataset, class Collate>
DataLoader(Dataset, DataLoaderOptions, Collate) -> DataLoader<Dataset, Collate>;

/// A torch::data loader, read whole by every rank and cut: rank r keeps batches
/// r, r + N …, and the last round is filled up with the first batches. Every
/// rank must see the same order, so a random sampler needs the same seed on
/// all. DataLoader above reads only what it needs, copies less and counts what
/// it repeats: prefer it.
template <class Loader>
class TorchLoader {
 public:
  explicit TorchLoader(std::unique_ptr<Loader> loader) : loader_(std::move(loader)) {}

  using Batch = std::decay_t<decltype(*std::declval<Loader&>().begin())>;

  class Iterator {
   public:
    explicit Iterator(TorchLoader& owner)
        : owner_(&owner), at_(owner.loader_->begin()), end_(owner.loader_->end()) {
      if (owner_->context_.begin) owner_->context_.begin();
      fetch_round();
      hand_out();
    }
    ~Iterator() {
      if (owner_ != nullptr && owner_->context_.end) owner_->context_.end();
    }
    Iterator(Iterator&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          at_(std::move(other.at_)),
          end_(std::move(other.end_)),
          is_first_round_(other.is_first_round_),
          first_round_(std::move(other.first_round_)),
          next_(std::move(other.next_)),
          batch_(std::move(other.batch_)) {}
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;

    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      hand_out();
      return *this;
    }
    bool operator==(detail::EndOfPass) const { return !batch_.has_value(); }

   private:
    // One round ahead, because only then is the last batch known to be it.
    void fetch_round() {
      next_.reset();
      const int count = owner_->context_.batch_count;
      const int mine = owner_->context_.batch_rank;
      int place = 0;
      for (; place < count && at_ != end_; ++place, ++at_) {
        Batch batch = std::move(*at_);
        if (is_first_round_) first_round_.push_back(batch);
        if (place == mine) next_ = std::move(batch);
      }
      is_first_round_ = false;
      if (place > mine || place == 0) return;
      if (owner_->context_.even_batches && !owner_->context_.even_batches().value_or(true)) return;
      // Rounds begin at rank 0: fill up with the first batches, in order.
      next_ = first_round_[static_cast<std::size_t>(mine - place) % first_round_.size()];
    }

    void hand_out() {
      batch_ = std::move(next_);
      if (!batch_) return;
      fetch_round();
      *batch_ = send_to_device(std::move(*batch_), owner_->context_.device);
      if (owner_->context_.on_batch) owner_->context_.on_batch(!next_.has_value(), 0);
    }

    using Position = decltype(std::declval<Loader&>().begin());
    TorchLoader* owner_;
    Position at_;
    Position end_;
    bool is_first_round_ = true;
    std::vector<Batch> first_round_;
    std::optional<Batch> next_;
    std::optional<Batch> batch_;
  };

  Iterator begin() { return Iterator(*this); }
  [[nodiscard]] detail::EndOfPass end() const { return {}; }
  [[nodiscard]] Loader& inner() { return *loader_; }

  /// For prepare().
  void attach(detail::LoaderContext context) { context_ = std::move(context); }

 private:
  std::unique_ptr<Loader> loader_;
  detail::LoaderContext context_;
};

}  // namespace accelerate
