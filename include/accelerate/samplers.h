#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace accelerate {

/// The order in which a pass visits the samples of a dataset. Every rank holds
/// one and they agree: the order depends on seed and epoch only. A class of your
/// own is given to a loader as DataLoaderOptions::sampler.
class ACCELERATE_API Sampler {
 public:
  Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler();

  /// Samples of a pass.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// The pass of `epoch` begins. `seed` is the loader's data_seed, else rank 0's
  /// torch::manual_seed.
  virtual void begin_pass(std::uint64_t seed, std::uint64_t epoch) = 0;
  /// The index in the dataset of the sample at `position`, from 0 to size() - 1,
  /// of the pass begun last.
  [[nodiscard]] virtual std::int64_t at(std::int64_t position) const = 0;
};

/// 0, 1, 2 …
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
/// start time at any size. What `shuffle` uses.
class ACCELERATE_API KeyedSampler final : public Sampler {
 public:
  explicit KeyedSampler(std::int64_t num_samples);
  ~KeyedSampler() override;
  [[nodiscard]] std::int64_t size() const override;
  void begin_pass(std::uint64_t seed, std::uint64_t epoch) override;
  [[nodiscard]] std::int64_t at(std::int64_t position) const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct RandomSamplerOptions {
  /// Draw each sample from all, so that some come twice and some not at all.
  bool replacement = false;
  /// Of a pass; unset: as many as the dataset has. More than that go round
  /// again.
  std::optional<std::int64_t> num_samples = std::nullopt;
};

/// The order that PyTorch's RandomSampler draws from this generator, which
/// moves on by it.
[[nodiscard]] ACCELERATE_API std::vector<std::int64_t> random_order(
    std::int64_t dataset_size,
    const RandomSamplerOptions& options,
    at::Generator& generator);

/// PyTorch's random order, from a generator seeded with seed + epoch: that of
/// Accelerate's SeedableRandomSampler. Memory and start time grow with the
/// dataset.
class ACCELERATE_API RandomSampler final : public Sampler {
 public:
  /// Throws ConfigError for sizes below 0, or samples of an empty dataset.
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

/// Draws each sample with a probability in proportion to its weight.
class ACCELERATE_API WeightedRandomSampler final : public Sampler {
 public:
  /// `weights`: one a sample, none below 0. Throws ConfigError if they cannot
  /// be drawn from: all 0, or without replacement more samples than weights
  /// above 0.
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

/// Which samples form each batch of a pass, for batches of different sizes.
/// Every rank holds one and they agree. Given to a loader as
/// DataLoaderOptions::batch_sampler; whole batches go to the ranks in turn.
class ACCELERATE_API BatchSampler {
 public:
  BatchSampler() = default;
  BatchSampler(const BatchSampler&) = delete;
  BatchSampler& operator=(const BatchSampler&) = delete;
  virtual ~BatchSampler();

  /// Batches of the pass begun last, or of any before the first.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// As Sampler's.
  virtual void begin_pass(std::uint64_t seed, std::uint64_t epoch) = 0;
  /// Indices in the dataset of the samples of batch `batch`, from 0 to
  /// size() - 1; at least one.
  [[nodiscard]] virtual std::vector<std::int64_t> at(
      std::int64_t batch) const = 0;
};

struct LengthBucketOptions {
  /// Samples of a batch, at most.
  std::int64_t batch_size = 1;
  /// Items (tokens, say) of a batch when all are padded to its longest, at
  /// most. A longer sample is a batch of its own. Unset: no limit.
  std::optional<std::int64_t> max_items = std::nullopt;
  /// A new grouping and order of batches in every epoch.
  bool shuffle = true;
  /// Samples are sorted by length within pools of so many batches: more, less
  /// padding; fewer, more chance.
  std::int64_t batches_in_pool = 100;
};

/// Batches of samples of similar length, so that little is padded.
class ACCELERATE_API LengthBucketSampler final : public BatchSampler {
 public:
  /// One length a sample. Throws ConfigError for options below 1.
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
