#pragma once

#include <cstdint>
#include <vector>

namespace accelerate::detail {

struct BatchSamplerShardOptions {
  std::int64_t num_samples = 0;
  /// The position at which the pass begins: earlier samples were already read,
  /// possibly by another number of ranks.
  std::int64_t first = 0;
  /// Batch size per rank; with `split_batches`, of all ranks together.
  std::int64_t batch_size = 1;
  int rank = 0;
  int count = 1;
  bool drop_last = false;
  bool split_batches = false;
  /// Pads the last round with samples from the beginning, so that all ranks
  /// have equally many batches of equal size.
  bool even_batches = true;
};

/// Decides which positions of the global order form one rank's batches, by pure
/// arithmetic; nothing is stored. The rules are those of Accelerate's
/// BatchSamplerShard. Batches go to the ranks in turn; with `split_batches`
/// each is cut into equal slices.
class BatchSamplerShard {
 public:
  /// Throws ConfigError for sizes below 1, or if `split_batches` does not
  /// divide evenly.
  explicit BatchSamplerShard(const BatchSamplerShardOptions& options);

  /// Number of batches of this rank.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Positions of the samples in batch `index`, including padding.
  [[nodiscard]] std::vector<std::int64_t> positions(std::int64_t index) const;
  /// Number of real samples, over all ranks, in the round of batch `index` if
  /// that round was padded; otherwise 0.
  [[nodiscard]] std::int64_t remainder(std::int64_t index) const;
  /// Number of samples that all ranks together take in one round.
  [[nodiscard]] std::int64_t round_size() const { return round_size_; }

 private:
  [[nodiscard]] std::int64_t begin_of(std::int64_t index) const;

  BatchSamplerShardOptions options_;
  std::int64_t rank_batch_size_;
  std::int64_t round_size_;
  bool is_filled_up_;
  std::int64_t size_;
};

}  // namespace accelerate::detail
