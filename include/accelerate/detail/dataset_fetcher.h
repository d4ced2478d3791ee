#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/detail/batch_source.h>
#include <accelerate/detail/dataset_concepts.h>
#include <accelerate/detail/worker_pool.h>
#include <accelerate/nested.h>
#include <accelerate/progress.h>

namespace accelerate::detail {

using LoaderClock = std::chrono::steady_clock;
inline double seconds_between(
    LoaderClock::time_point begin,
    LoaderClock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Throws DataError "sample 17: get() failed: ..." with the current exception
/// nested. Must be called in a catch block.
[[noreturn]] ACCELERATE_API void throw_sample_error(
    std::int64_t sample,
    const char* verb);
[[noreturn]] ACCELERATE_API void throw_batch_error(
    std::int64_t batch,
    const std::vector<std::int64_t>& samples,
    const char* verb);
/// Throws DataError for a dataset that shrank during a pass.
[[noreturn]] ACCELERATE_API void throw_shrunk(
    std::int64_t sample,
    std::int64_t size);

/// Shows how many samples of a stream have been skipped, and warns once if that
/// takes long.
class ACCELERATE_API SkipProgress {
 public:
  /// `bar`: how the bar looks on this rank.
  SkipProgress(
      const Logger& logger,
      std::int64_t num_samples,
      ProgressOptions bar,
      std::chrono::milliseconds patience = std::chrono::seconds(5));
  /// Counts a sample.
  void update();

 private:
  const Logger* logger_;
  std::int64_t num_samples_;
  Progress bar_;
  LoaderClock::time_point warning_time_;
  bool has_warned_ = false;
};

/// Reads a dataset batch by batch: claims the next batch, then makes it. Shared
/// by a loader and its workers.
template <class Dataset, class Collate>
class DatasetFetcher
    : public std::enable_shared_from_this<DatasetFetcher<Dataset, Collate>> {
 public:
  static constexpr bool kIsStream = StreamDataset<Dataset>;

 private:
  using MakeGenerator = at::Generator& (*)();
  static auto sample_type() {
    if constexpr (!must_be_dataset<Dataset>()) {
      return std::type_identity<void>{};
    } else if constexpr (kIsStream) {
      return std::type_identity<
          std::decay_t<decltype(*std::declval<Dataset&>().next())>>{};
    } else if constexpr (BatchDataset<Dataset>) {
      return std::type_identity<void>{};
    } else {
      return std::type_identity<std::decay_t<decltype(get_sample(
          std::declval<Dataset&>(), 0, std::declval<MakeGenerator>()))>>{};
    }
  }

 public:
  using Sample = typename decltype(sample_type())::type;
  // A dataset without a sample type never has samples.
  using Samples =
      std::vector<std::conditional_t<std::is_void_v<Sample>, char, Sample>>;

 private:
  static auto batch_type() {
    if constexpr (!ReadableDataset<Dataset>) {
      return std::type_identity<char>{};
    } else if constexpr (!kIsStream && BatchDataset<Dataset>) {
      return std::type_identity<std::decay_t<decltype(get_samples(
          std::declval<Dataset&>(),
          std::span<const std::int64_t>(),
          std::declval<MakeGenerator>()))>>{};
    } else if constexpr (requires(
                             Collate& collate,
                             Samples samples,
                             at::Generator& generator) {
                           collate(std::move(samples), generator);
                         }) {
      return std::type_identity<std::decay_t<decltype(std::declval<Collate&>()(
          std::declval<Samples>(), std::declval<at::Generator&>()))>>{};
    } else if constexpr (!must_collate<Collate, Samples>()) {
      return std::type_identity<char>{};
    } else {
      return std::type_identity<std::decay_t<decltype(std::declval<Collate&>()(
          std::declval<Samples>()))>>{};
    }
  }

 public:
  using Batch = typename decltype(batch_type())::type;

  struct Job final : BatchJob {
    std::shared_ptr<DatasetFetcher> fetcher;
    /// Number of the batch on this rank in this pass.
    std::int64_t number = 0;
    BatchIndices read;
    /// Streams only: the samples that were read.
    Samples samples = {};
    /// The stream's own state after it gave this batch's last sample.
    std::optional<StateDict> stream_state = std::nullopt;
    std::optional<Batch> batch = std::nullopt;
    /// The copy to the device that is in progress.
    std::shared_ptr<void> sent = nullptr;
    double read_seconds = 0;
    double collate_seconds = 0;
    double transfer_seconds = 0;

    void run(Worker& worker) override { fetcher->make(*this, worker); }
  };

  DatasetFetcher(
      Dataset data,
      Collate collate_function,
      const DataLoaderOptions& opts)
      : dataset(std::move(data)),
        collate(std::move(collate_function)),
        options(opts),
        source({num_samples(), kIsStream, says_is_sharded(dataset)}, opts) {}

  /// Negative if unknown.
  [[nodiscard]] std::int64_t num_samples() const {
    if constexpr (SizedDataset<Dataset>) {
      return size_of(dataset);
    } else {
      return -1;
    }
  }

  /// A stream that can be restored continues from `stream_state`.
  void begin_pass(const std::optional<StateDict>& stream_state) {
    source.begin_pass(num_samples());
    next_number_ = 0;
    has_begun_ = false;
    stream_has_ended_ = false;
    num_read_ = 0;
    ahead_.reset();
    first_samples_.clear();
    if constexpr (kIsStream) {
      if (!reads()) return;
      if constexpr (requires { dataset.set_epoch(std::uint64_t{}); }) {
        dataset.set_epoch(source.epoch());
      }
      if constexpr (requires { dataset.reset(); }) dataset.reset();
      if constexpr (RestorableDataset<Dataset>) {
        if (stream_state) {
          dataset.load_state_dict(*stream_state);
          num_read_ = source.first();
          return;
        }
      }
      SkipProgress progress(
          source.context().logger, source.first(), source.context().progress);
      while (num_read_ < source.first() && next_sample()) progress.update();
    }
  }

  /// Whether batches go to the accelerator's device.
  [[nodiscard]] bool places_batches() const {
    return options.device_placement.value_or(true);
  }

  /// Whether this rank reads the dataset.
  [[nodiscard]] bool reads() const {
    return !source.is_dispatching() || source.context().group.rank() == 0;
  }

  /// The next batch of this rank, or round if rank 0 reads for all ranks; null
  /// at the end. Must not be called concurrently.
  std::unique_ptr<Job> claim(Worker& worker) {
    auto job = std::make_unique<Job>();
    job->fetcher = this->shared_from_this();
    job->number = next_number_;
    if constexpr (kIsStream) {
      const auto start = LoaderClock::now();
      if (!claim_from_stream(*job, worker)) return nullptr;
      job->read_seconds = seconds_between(start, LoaderClock::now());
    } else {
      if (next_number_ >= source.size()) return nullptr;
      job->read = source.at(next_number_);
      job->is_last = next_number_ + 1 >= source.size();
    }
    ++next_number_;
    return job;
  }

  void skip(std::int64_t num_batches) {
    if constexpr (kIsStream) {
      for (std::int64_t i = 0; i < num_batches && claim(self); ++i) {
      }
    } else {
      next_number_ += num_batches;
    }
  }

  Dataset dataset;
  Collate collate;
  DataLoaderOptions options;
  BatchSource source;
  /// The worker of the loop's own thread.
  Worker self;

 private:
  struct Round {
    Samples samples = {};
    std::optional<StateDict> state = std::nullopt;
  };

  // Uses nothing that a pass changes: a worker that was left behind may run
  // this during the next pass.
  void make(Job& job, Worker& worker) {
    const auto start = LoaderClock::now();
    auto collate_start = start;
    if constexpr (kIsStream) {
      collate_samples(job, std::move(job.samples), worker);
    } else if constexpr (BatchDataset<Dataset>) {
      read_batch(job, worker);
      collate_start = LoaderClock::now();
    } else {
      Samples samples = read_samples(job, worker);
      collate_start = LoaderClock::now();
      collate_samples(job, std::move(samples), worker);
    }
    const auto made = LoaderClock::now();
    job.read_seconds += seconds_between(start, collate_start);
    job.collate_seconds = seconds_between(collate_start, made);
    if constexpr (NestedTensors<Batch>) {
      if (source.context().device.is_cpu() || source.is_dispatching()) return;
      worker.now(Worker::Doing::transferring, job.number);
      send(job, worker);
      job.transfer_seconds = seconds_between(made, LoaderClock::now());
    }
  }

  void send(Job& job, Worker& worker) {
    const at::Device device = source.context().device;
    if (options.pin_memory) {
      visit_tensors(*job.batch, TensorVisitor{[](at::Tensor& tensor) {
        if (tensor.defined() && tensor.is_cpu()) tensor = tensor.pin_memory();
      }});
    }
    if (!places_batches()) return;
    const auto copy = [&] {
      job.batch = send_to_device(
          *std::move(job.batch),
          device,
          options.non_blocking.value_or(false) || options.pin_memory);
    };
    if (&worker == &self) {
      copy();
    } else {
      job.sent = worker.on_side_stream(device, copy);
    }
  }

  void require_present(std::int64_t index) const {
    if constexpr (SizedDataset<Dataset>) {
      const std::int64_t size = size_of(dataset);
      if (index >= size) throw_shrunk(index, size);
    }
  }

  void read_batch(Job& job, Worker& worker) {
    const std::vector<std::int64_t>& indices = job.read.indices;
    worker.now(Worker::Doing::reading, indices.empty() ? 0 : indices.front());
    if (!indices.empty()) {
      require_present(*std::max_element(indices.begin(), indices.end()));
    }
    try {
      job.batch.emplace(get_samples(
          dataset,
          std::span<const std::int64_t>(indices),
          [&]() -> at::Generator& {
            return worker.generator(
                seed_at(job.read.pass_seed, job.read.first_position));
          }));
    } catch (...) {
      throw_batch_error(job.number, indices, "get_batch()");
    }
  }

  Samples read_samples(const Job& job, Worker& worker) {
    Samples samples;
    samples.reserve(job.read.indices.size());
    std::int64_t position = job.read.first_position;
    for (const std::int64_t index : job.read.indices) {
      worker.now(Worker::Doing::reading, index);
      require_present(index);
      try {
        samples.push_back(get_sample(dataset, index, [&]() -> at::Generator& {
          return worker.generator(seed_at(job.read.pass_seed, position));
        }));
      } catch (...) {
        throw_sample_error(index, "get()");
      }
      ++position;
    }
    return samples;
  }

  void collate_samples(Job& job, Samples samples, Worker& worker) {
    worker.now(Worker::Doing::collating, job.number);
    try {
      if constexpr (requires(at::Generator& generator) {
                      collate(std::move(samples), generator);
                    }) {
        // ~ selects a generator other than the first sample's.
        at::Generator& generator = worker.generator(
            seed_at(job.read.pass_seed, ~job.read.first_position));
        job.batch.emplace(collate(std::move(samples), generator));
      } else {
        job.batch.emplace(collate(std::move(samples)));
      }
    } catch (...) {
      throw_batch_error(job.number, job.read.indices, "the collate function");
    }
  }

  auto next_sample() {
    try {
      auto sample = dataset.next();
      stream_has_ended_ = !sample;
      num_read_ += stream_has_ended_ ? 0 : 1;
      return sample;
    } catch (...) {
      throw_sample_error(num_read_, "next()");
    }
  }

  // Number of rows that this rank reads per round of a stream.
  [[nodiscard]] std::int64_t rows_of_round() const {
    return source.rank_batch_size() * source.num_shares();
  }

  // The samples for all ranks in the next round of a stream.
  std::optional<Round> read_round(Worker& worker) {
    const auto size = static_cast<std::size_t>(rows_of_round());
    Round round;
    while (!stream_has_ended_ && round.samples.size() < size) {
      worker.now(Worker::Doing::reading, num_read_);
      if (auto sample = next_sample())
        round.samples.push_back(*std::move(sample));
    }
    const bool is_partial = round.samples.size() < size;
    if (round.samples.empty() || (is_partial && options.drop_last))
      return std::nullopt;
    if constexpr (RestorableDataset<Dataset>)
      round.state = dataset.state_dict();
    return round;
  }

  // The range of a round's samples that this rank gets. Indices from `rows` on
  // stand for repeated samples.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> share_of_round(
      std::int64_t rows) const {
    const std::int64_t size = source.rank_batch_size();
    const std::int64_t begin = source.share() * size;
    return {
        begin, source.fills_up() ? begin + size : std::min(begin + size, rows)};
  }
  [[nodiscard]] bool has_share(const std::optional<Round>& round) const {
    if (!round || source.is_dispatching()) return round.has_value();
    const auto [begin, end] =
        share_of_round(static_cast<std::int64_t>(round->samples.size()));
    return begin < end;
  }

  bool claim_from_stream(Job& job, Worker& worker) {
    // Reads one round ahead, because otherwise the last round is not known to
    // be the last.
    if (!std::exchange(has_begun_, true)) ahead_ = read_round(worker);
    if (!has_share(ahead_)) return false;
    Round round = *std::exchange(ahead_, std::nullopt);
    const auto rows = static_cast<std::int64_t>(round.samples.size());
    job.read.pass_seed = source.pass_seed();
    job.read.first_position = num_read_ - rows;
    job.stream_state = std::move(round.state);
    ahead_ = read_round(worker);
    job.is_last = !has_share(ahead_);
    if (source.is_dispatching()) {
      job.samples = std::move(round.samples);
      return true;
    }
    if (source.fills_up() && first_samples_.empty())
      first_samples_ = round.samples;
    const auto [begin, end] = share_of_round(rows);
    for (std::int64_t i = begin; i < end; ++i) {
      const auto position = static_cast<std::size_t>(i < rows ? i : i - rows);
      job.samples.push_back(
          i < rows ? std::move(round.samples[position])
                   : first_samples_[position % first_samples_.size()]);
    }
    job.read.first_position += begin;
    const bool is_filled = source.fills_up() && rows < rows_of_round();
    job.read.remainder = is_filled ? rows : 0;
    return true;
  }

  std::int64_t next_number_ = 0;
  // True once the first round of a stream was read.
  bool has_begun_ = false;
  bool stream_has_ended_ = false;
  std::int64_t num_read_ = 0;
  /// A round that was read but not claimed yet.
  std::optional<Round> ahead_ = std::nullopt;
  /// The samples that pad the last round.
  Samples first_samples_ = {};
};

}  // namespace accelerate::detail
