#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "data/order/batch_sampler_shard.h"
#include "data/order/batch_source.h"

namespace accelerate::detail {

/// Deals batches of any size to the ranks in turn, by the rules of Accelerate's
/// BatchSamplerShard without a batch size.
struct BatchRoundRobin {
  std::int64_t num_batches = 0;
  /// Number of batches that were already read.
  std::int64_t first = 0;
  int rank = 0;
  int count = 1;
  /// Drops a round that does not have a batch for every rank.
  bool drop_last = false;
  /// Gives ranks without a batch in the last round one of the first batches.
  bool even_batches = true;

  /// Number of batches of this rank.
  [[nodiscard]] std::int64_t size() const {
    const std::int64_t num_left =
        std::max<std::int64_t>(num_batches - first, 0);
    const std::int64_t rest = num_left % count;
    const bool has_one_more =
        rest > 0 && !drop_last && (even_batches || rank < rest);
    return num_left / count + (has_one_more ? 1 : 0);
  }
  /// Index, among all batches, of this rank's batch `index`.
  [[nodiscard]] std::int64_t batch(std::int64_t index) const {
    return (first + index * count + rank) % num_batches;
  }
  /// Number of batches in the round of `index` that are not repetitions.
  [[nodiscard]] std::int64_t num_real(std::int64_t index) const {
    return std::min<std::int64_t>(num_batches - first - index * count, count);
  }
};

/// Decides which samples form the batches of one rank in one pass.
class BatchOrder {
 public:
  BatchOrder() = default;
  BatchOrder(const BatchOrder&) = delete;
  BatchOrder& operator=(const BatchOrder&) = delete;
  virtual ~BatchOrder() = default;

  /// Number of batches of this rank.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual BatchIndices at(std::int64_t index) const = 0;
  /// Number of samples of all ranks in one round; 0 if rounds differ.
  [[nodiscard]] virtual std::int64_t round_size() const = 0;
  /// Number of positions per round.
  [[nodiscard]] virtual std::int64_t positions_in_round() const = 0;
  /// Number of positions in the entire pass.
  [[nodiscard]] virtual std::int64_t length() const = 0;
};

/// Batches of equal size from an order of samples. Positions count samples.
class SampleOrder final : public BatchOrder {
 public:
  /// `read` selects the positions that this rank reads; `shared` describes the
  /// rounds of all ranks.
  SampleOrder(
      std::shared_ptr<Sampler> sampler,
      const BatchSamplerShard& shared,
      const BatchSamplerShard& read)
      : sampler_(std::move(sampler)), shared_(shared), read_(read) {}

  [[nodiscard]] std::int64_t size() const override { return read_.size(); }
  [[nodiscard]] BatchIndices at(std::int64_t index) const override {
    BatchIndices batch{
        .indices = read_.positions(index),
        .remainder = shared_.remainder(index)};
    if (!batch.indices.empty()) batch.first_position = batch.indices.front();
    for (std::int64_t& i : batch.indices) i = sampler_->at(i);
    return batch;
  }
  [[nodiscard]] std::int64_t round_size() const override {
    return shared_.round_size();
  }
  [[nodiscard]] std::int64_t positions_in_round() const override {
    return shared_.round_size();
  }
  [[nodiscard]] std::int64_t length() const override {
    return sampler_->size();
  }

 private:
  std::shared_ptr<Sampler> sampler_;
  BatchSamplerShard shared_;
  BatchSamplerShard read_;
};

/// Deals the batches of a batch sampler to the ranks in turn. Positions count
/// batches.
class BatchSamplerOrder final : public BatchOrder {
 public:
  BatchSamplerOrder(
      std::shared_ptr<BatchSampler> sampler,
      const BatchRoundRobin& turns)
      : sampler_(std::move(sampler)), turns_(turns) {}

  [[nodiscard]] std::int64_t size() const override { return turns_.size(); }
  [[nodiscard]] BatchIndices at(std::int64_t index) const override {
    const std::int64_t batch = turns_.batch(index);
    // Leaves this many bits for the seeds of the samples in a batch.
    constexpr int kBits = 24;
    return {
        .indices = sampler_->at(batch),
        .first_position = batch << kBits,
        .remainder = remainder(index)};
  }
  [[nodiscard]] std::int64_t round_size() const override { return 0; }
  [[nodiscard]] std::int64_t positions_in_round() const override {
    return turns_.count;
  }
  [[nodiscard]] std::int64_t length() const override {
    return sampler_->size();
  }

 private:
  [[nodiscard]] std::int64_t remainder(std::int64_t index) const {
    const std::int64_t num_real = turns_.num_real(index);
    if (num_real == turns_.count || !turns_.even_batches) return 0;
    std::int64_t samples = 0;
    for (std::int64_t i = 0; i < num_real; ++i) {
      const auto batch = sampler_->at(turns_.first + index * turns_.count + i);
      samples += static_cast<std::int64_t>(batch.size());
    }
    return samples;
  }

  std::shared_ptr<BatchSampler> sampler_;
  BatchRoundRobin turns_;
};

}  // namespace accelerate::detail
