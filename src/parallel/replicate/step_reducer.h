#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "parallel/replicate/bucket_reducer.h"
#include "parallel/replicate/gradient_reduction.h"

namespace accelerate::detail {

/// Averages the gradients of a step of several backwards, the last of which
/// differs per parameter: a pipeline's micro-batches. (c10d::Reducer handles a
/// single backward.) Buckets are sent in order, each as soon as all of its
/// gradients are complete.
///
/// A parameter without a gradient on this rank contributes zero, and keeps none
/// if no rank has one.
class StepReducer {
 public:
  using Reduce = std::function<FutureTensor(c10d::GradBucket&)>;

  /// `reduce` returns the mean of a bucket over `group`, and is called on the
  /// thread that computes gradients. `rows` must outlive the object.
  StepReducer(
      const TrainableRows& rows,
      const Group& group,
      const ReplicateOptions& options,
      Reduce reduce);
  ~StepReducer();
  StepReducer(const StepReducer&) = delete;
  StepReducer& operator=(const StepReducer&) = delete;

  /// Called before a backward that is the last one for `parameters`.
  void begin_last(const std::vector<at::Tensor>& parameters);
  /// Called after that backward: parameters that it did not reach are complete,
  /// too.
  void end_last();
  /// Whether gradients are being sent, or may have been.
  [[nodiscard]] bool has_begun() const { return has_begun_; }
  /// Completes the remaining gradients, waits for all means, and gives them to
  /// the parameters.
  void finish();
  /// Discards a step that failed.
  void abandon();

  /// The times of the last step.
  [[nodiscard]] const ReductionTimes& times() const { return times_; }

 private:
  class Hook;
  enum class State { computed_later, computed_now, complete };
  struct Bucket {
    std::vector<std::size_t> rows;
    std::size_t num_missing = 0;
    FutureTensor mean;
  };

  void hook(std::size_t row);
  void on_gradient(std::size_t row);
  void complete(std::size_t row);
  void send(std::size_t index);
  void take(const Bucket& bucket, const std::int64_t* num_owners);

  const TrainableRows& rows_;
  Group group_;
  bool keeps_views_;
  Reduce reduce_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> row_of_;
  std::vector<std::function<void()>> unhook_;

  // Backward runs on other threads if there is an accelerator.
  std::mutex mutex_;
  bool has_begun_ = false;
  std::vector<State> states_;
  std::vector<std::size_t> bucket_of_;
  std::vector<Bucket> buckets_;
  std::size_t next_bucket_ = 0;
  std::int64_t first_sent_ns_ = 0;
  ReductionTimes times_;
};

}  // namespace accelerate::detail
