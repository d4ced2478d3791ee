#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

namespace accelerate {

/// The order in which a pass visits the samples of a dataset. Every rank holds
/// a sampler, and all agree: the order depends only on seed and epoch. Pass
/// your own class to a loader as DataLoaderOptions::sampler.
class ACCELERATE_API Sampler {
 public:
  Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler();

  /// Number of samples in a pass.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Begins the pass of `epoch`. `seed` is the loader's data_seed, else rank
  /// 0's torch::manual_seed.
  virtual void begin_pass(std::uint64_t seed, std::uint64_t epoch) = 0;
  /// The dataset index of the sample at `position` (0 to size() - 1) of the
  /// pass begun last. The library's samplers throw DataError for another
  /// position, and before begin_pass().
  [[nodiscard]] virtual std::int64_t at(std::int64_t position) const = 0;
};

/// The order 0, 1, 2 …
class ACCELERATE_API SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t num_samples)
      : num_samples_(num_samples) {}
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  void begin_pass(std::uint64_t, std::uint64_t) override {}
  [[nodiscard]] std::int64_t at(std::int64_t position) const override {
    return position;
  }

 private:
  std::int64_t num_samples_;
};

/// A keyed permutation: a new order in every epoch, in constant memory and
/// start-up time for any size. `shuffle` uses it.
class ACCELERATE_API KeyedSampler final : public Sampler {
 public:
  explicit KeyedSampler(std::int64_t num_samples);
  ~KeyedSampler() override;
  [[nodiscard]] std::int64_t size() const override;
  void begin_pass(std::uint64_t seed, std::uint64_t epoch) override;
  [[nodiscard]] std::int64_t at(std::int64_t position) const override;

 private:
  struct State;
  detail::OwnedPtr<State> state_;
};

struct RandomSamplerOptions {
  /// Draw with replacement: samples may occur several times or not at all.
  bool replacement = false;
  /// Number of samples in a pass; unset: the size of the dataset. Without
  /// replacement, a larger number starts another permutation.
  std::optional<std::int64_t> num_samples = std::nullopt;
};

/// The order that PyTorch's RandomSampler draws from this generator, which it
/// advances.
[[nodiscard]] ACCELERATE_API std::vector<std::int64_t> random_order(
    std::int64_t dataset_size,
    const RandomSamplerOptions& options,
    at::Generator& generator);

/// PyTorch's random order, from a generator seeded with seed + epoch, as in
/// Accelerate's SeedableRandomSampler. Memory and start-up time grow with the
/// dataset.
class ACCELERATE_API RandomSampler final : public Sampler {
 public:
  /// Throws ConfigError for negative sizes, or samples of an empty dataset.
  explicit RandomSampler(
      std::int64_t dataset_size,
      const RandomSamplerOptions& options = {});
  [[nodiscard]] std::int64_t size() const override;
  void begin_pass(std::uint64_t seed, std::uint64_t epoch) override;
  [[nodiscard]] std::int64_t at(std::int64_t position) const override;

 private:
  std::int64_t dataset_size_;
  RandomSamplerOptions options_;
  std::vector<std::int64_t> order_;
};

/// Draws each sample with a probability proportional to its weight.
class ACCELERATE_API WeightedRandomSampler final : public Sampler {
 public:
  /// `weights` has one entry per sample, none negative. Throws ConfigError if
  /// they cannot be drawn from: if all are 0, or, without replacement, if there
  /// are more samples than positive weights.
  WeightedRandomSampler(
      std::vector<double> weights,
      std::int64_t num_samples,
      bool replacement = true);
  [[nodiscard]] std::int64_t size() const override { return num_samples_; }
  void begin_pass(std::uint64_t seed, std::uint64_t epoch) override;
  [[nodiscard]] std::int64_t at(std::int64_t position) const override;

 private:
  at::Tensor weights_;
  std::int64_t num_samples_;
  bool replacement_;
  at::Tensor order_;
};

/// Decides which samples form each batch of a pass, for batches of different
/// sizes. Every rank holds one, and all agree. Pass it to a loader as
/// DataLoaderOptions::batch_sampler; batches go to the ranks in turn.
class ACCELERATE_API BatchSampler {
 public:
  BatchSampler() = default;
  BatchSampler(const BatchSampler&) = delete;
  BatchSampler& operator=(const BatchSampler&) = delete;
  virtual ~BatchSampler();

  /// Number of batches of the pass begun last. Must be valid before the first
  /// pass as well.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Begins the pass of `epoch`; see Sampler::begin_pass.
  virtual void begin_pass(std::uint64_t seed, std::uint64_t epoch) = 0;
  /// The dataset indices of the samples of batch `batch` (0 to size() - 1); at
  /// least one.
  [[nodiscard]] virtual std::vector<std::int64_t> at(
      std::int64_t batch) const = 0;
};

struct LengthBucketOptions {
  /// Maximum number of samples in a batch.
  std::int64_t batch_size = 1;
  /// Maximum number of items (such as tokens) in a batch, counting the padding
  /// to its longest sample. A longer sample forms its own batch. Unset: no
  /// limit.
  std::optional<std::int64_t> max_items = std::nullopt;
  /// A new grouping and order of batches in every epoch.
  bool shuffle = true;
  /// Samples are sorted by length within pools of this many batches: more mean
  /// less padding; fewer, more randomness.
  std::int64_t batches_in_pool = 100;
};

/// Batches of samples of similar length, so that little is padded.
class ACCELERATE_API LengthBucketSampler final : public BatchSampler {
 public:
  /// `lengths` has one entry per sample. Throws ConfigError for options below
  /// 1.
  LengthBucketSampler(
      std::vector<std::int64_t> lengths,
      const LengthBucketOptions& options);
  [[nodiscard]] std::int64_t size() const override;
  void begin_pass(std::uint64_t seed, std::uint64_t epoch) override;
  [[nodiscard]] std::vector<std::int64_t> at(std::int64_t batch) const override;

 private:
  std::vector<std::int64_t> lengths_;
  LengthBucketOptions options_;
  std::vector<std::vector<std::int64_t>> batches_;
};

}  // namespace accelerate
