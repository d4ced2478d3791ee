#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "parallel/join_round.h"
#include "parallel/replicate/gradient_reduction.h"
#include "parallel/replicate/replica_reducer.h"

namespace accelerate::detail {

/// A replica's part in join_uneven_inputs(): announces its collectives to ranks
/// that have run out of data, and, as such a rank, takes part in theirs.
class ReplicaJoin {
 public:
  /// Null outside a join.
  [[nodiscard]] const JoinRound* round() const { return round_; }
  /// From here to end(), announces collectives in the round under model number
  /// `model`.
  void begin(JoinRound& round, int model);
  void end();

  /// Tells ranks without data about a collective, if there can be any.
  void announce(JoinEvent::Kind kind, int bucket = 0);
  /// Whether a collective was announced since the last call.
  bool take_announced() { return std::exchange(was_announced_, false); }
  /// Takes part in the reduction of a bucket, without gradients.
  void shadow_bucket(
      int index,
      ReplicaReducer& reducer,
      GradientReduction& reduction,
      const ReductionContext& context);

 private:
  JoinRound* round_ = nullptr;
  int model_ = 0;
  /// True if ranks without data take part in this backward.
  bool was_announced_ = false;
  std::deque<c10d::GradBucket> empty_buckets_;
  std::vector<FutureTensor> futures_;
};

}  // namespace accelerate::detail
