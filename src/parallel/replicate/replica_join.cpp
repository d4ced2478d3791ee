#include "parallel/replicate/replica_join.h"

#include <cstddef>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace accelerate::detail {

void ReplicaJoin::begin(JoinRound& round, int model) {
  round_ = &round;
  model_ = model;
  was_announced_ = false;
}

void ReplicaJoin::end() {
  round_ = nullptr;
  empty_buckets_.clear();
}

void ReplicaJoin::announce(JoinEvent::Kind kind, int bucket) {
  if (round_ == nullptr) return;
  was_announced_ = true;
  round_->announce(JoinEvent{kind, model_, bucket});
}

void ReplicaJoin::shadow_bucket(
    int index,
    ReplicaReducer& reducer,
    GradientReduction& reduction,
    const ReductionContext& context) {
  const at::NoGradGuard no_grad;
  if (index == 0) {
    futures_.clear();
    empty_buckets_.clear();
  }
  c10d::GradBucket& bucket = empty_buckets_.emplace_back(
      reducer.zeros(static_cast<std::size_t>(index)));
  futures_.push_back(reduction.reduce(bucket, context));
  if (!bucket.isLast()) return;
  for (const FutureTensor& future : futures_) future->waitAndThrow();
  reducer.finish_without_gradients();
}

}  // namespace accelerate::detail
