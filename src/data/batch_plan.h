#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/export.h>

namespace accelerate::detail {

struct BatchPlanOptions {
  std::int64_t num_samples = 0;
  /// Where in the order the pass begins: what came before was read already,
  /// perhaps by another number of ranks.
  std::int64_t first = 0;
  /// Of one rank, or of all together with `split_batches`.
  std::int64_t batch_size = 1;
  int rank = 0;
  int count = 1;
  bool drop_last = false;
  bool split_batches = false;
  /// Fills the last round up with samples from the beginning, so that all
  /// ranks have equally many batches of equal size.
  bool even_batches = true;
};

/// Which positions of the global order form one rank's batches: pure
/// arithmetic, nothing stored. The rules are those of Accelerate's
/// BatchSamplerShard. Whole batches go to the ranks in turn; with
/// `split_batches` each is cut into equal slices.
class ACCELERATE_API BatchPlan {
 public:
  /// Throws ConfigError for sizes below 1, or a split that does not divide.
  explicit BatchPlan(const BatchPlanOptions& options);

  /// Batches this rank gets.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Positions of batch `index`; several times the same where it was filled up.
  [[nodiscard]] std::vector<std::int64_t> positions(std::int64_t index) const;
  /// Real samples, over all ranks, in the round that batch `index` belongs to
  /// if that round was filled up; else 0.
  [[nodiscard]] std::int64_t remainder(std::int64_t index) const;
  /// Samples that all ranks together take in one round.
  [[nodiscard]] std::int64_t round_size() const { return round_size_; }

 private:
  [[nodiscard]] std::int64_t begin_of(std::int64_t index) const;

  BatchPlanOptions options_;
  std::int64_t rank_batch_size_;
  std::int64_t round_size_;
  bool is_filled_up_;
  std::int64_t size_;
};

}  // namespace accelerate::detail
