#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Generator.h>

#include <accelerate/data_loader_options.h>
#include <accelerate/detail/handles.h>
#include <accelerate/detail/loaded_batch.h>
#include <accelerate/detail/loader_context.h>
#include <accelerate/detail/loader_engine.h>
#include <accelerate/export.h>
#include <accelerate/prefetch_report.h>
#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// Gives the generator for the random numbers of one sample or batch. Seeds it
/// only when called.
class ACCELERATE_API SampleGenerator {
 public:
  SampleGenerator(
      Worker& worker,
      std::uint64_t pass_seed,
      std::int64_t position)
      : worker_(worker), pass_seed_(pass_seed), position_(position) {}
  at::Generator& operator()() const;

 private:
  Worker& worker_;
  std::uint64_t pass_seed_;
  std::int64_t position_;
};

/// What follows from the types of a dataset and its batches.
struct LoaderFacts {
  bool is_stream = false;
  /// Whether the dataset yields batches, not samples.
  bool gives_batches = false;
  bool is_sharded = false;
  bool has_tensors = false;
  bool can_dispatch = false;
};

/// A dataset and its collate function, with their types erased. With workers,
/// several threads call get(), get_batch() and collate() at once.
class ACCELERATE_API LoaderDataset {
 public:
  explicit LoaderDataset(const LoaderFacts& its_facts);
  LoaderDataset(const LoaderDataset&) = delete;
  LoaderDataset& operator=(const LoaderDataset&) = delete;
  virtual ~LoaderDataset();

  /// Negative if unknown.
  [[nodiscard]] virtual std::int64_t num_samples() const = 0;
  /// A batch to be filled by the functions below.
  [[nodiscard]] virtual std::unique_ptr<LoadedBatch> new_batch() const = 0;
  virtual void collate(
      LoadedBatch& batch,
      const SampleGenerator& generator) = 0;

  // Random access.
  /// Appends a sample to `batch`.
  virtual void get(
      LoadedBatch& batch,
      std::int64_t index,
      const SampleGenerator& generator) = 0;
  /// Reads the samples with the indices of `batch`, collated.
  virtual void get_batch(
      LoadedBatch& batch,
      const SampleGenerator& generator) = 0;

  // Streams.
  virtual void begin_epoch(std::uint64_t epoch) = 0;
  /// Restores the stream's own state; false if it has none.
  virtual bool restore(const StateDict& state) = 0;
  /// The stream's own state, if it has one.
  [[nodiscard]] virtual std::optional<StateDict> state_dict() const = 0;
  /// Reads a sample and appends it to `batch`, unless that is null; false at
  /// the end.
  virtual bool next(LoadedBatch* batch) = 0;
  /// Keeps samples [begin, end) of `round`. Those past its end are copies of
  /// the samples of `first`, repeated as necessary.
  virtual void keep_share(
      LoadedBatch& round,
      std::int64_t begin,
      std::int64_t end,
      const LoadedBatch* first) = 0;
  [[nodiscard]] virtual std::unique_ptr<LoadedBatch> copy_samples(
      const LoadedBatch& round) const = 0;

  /// Cuts rows [begin, end) out of a round with the program's own function;
  /// null if there is none.
  [[nodiscard]] virtual std::unique_ptr<LoadedBatch> slice(
      const LoadedBatch& round,
      std::int64_t begin,
      std::int64_t end) const = 0;

  const LoaderFacts facts;
};

/// The engine of a DataLoader.
class ACCELERATE_API DatasetEngine final : public LoaderEngine {
 public:
  /// Throws ConfigError for options that are invalid or contradictory.
  DatasetEngine(
      std::unique_ptr<LoaderDataset> dataset,
      const DataLoaderOptions& options);
  ~DatasetEngine() override;

  void begin_pass() override;
  void skip(std::int64_t num_batches) override;
  std::unique_ptr<LoadedBatch> next() override;
  void end_pass() noexcept override;
  [[nodiscard]] std::uint64_t epoch() const override;
  void set_epoch(std::uint64_t epoch) override;
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  void attach(LoaderContext context);
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t total_batch_size() const;
  [[nodiscard]] const PrefetchReport& report() const;
  [[nodiscard]] LoaderDataset& dataset() const;
  [[nodiscard]] const DataLoaderOptions& options() const;

 private:
  struct State;
  OwnedPtr<State> state_;
};

}  // namespace accelerate::detail
