#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <ATen/core/ivalue.h>

#include <accelerate/parallel_options.h>
#include <accelerate/state_dict.h>

namespace c10d {
class GradBucket;
class ProcessGroup;
}  // namespace c10d

namespace accelerate {

/// The ranks that a bucket is reduced over.
struct BucketContext {
  /// Valid during the call. LibTorch's own hooks take its address.
  c10d::ProcessGroup& process_group;
  /// What turns a sum over the ranks into their mean: the number of ranks, or,
  /// inside join_uneven_inputs, what JoinOptions say.
  double divisor;
};

/// A user's own reduction of gradients (PyTorch's communication hook), for
/// ReplicateOptions::bucket_hook:
///
///     options.bucket_hook = std::make_shared<BucketHook>(BucketHook{
///         .reduce = [](c10d::GradBucket& bucket, const BucketContext& ranks) {
///           bucket.getBufferRef().div_(ranks.divisor);
///           std::vector<at::Tensor> tensors{bucket.getBuffer()};
///           return ranks.process_group.allreduce(tensors)->getFuture();
///         }});
///
/// Include <torch/csrc/distributed/c10d/comm.hpp> for the bucket.
struct BucketHook {
  /// Called in the backward pass, on the thread that computes it, as soon as a
  /// bucket is full: in the order of the buckets' indices, which is the same on
  /// all ranks. So hooks that start the same collectives in each call match. It
  /// must not start a backward, and should not wait: the pass goes on while
  /// messages travel.
  ///
  /// The bucket lives until the function returns; its buffer, one dimension of
  /// the gradients' dtype, until the future is complete, and may be changed in
  /// place. The future's value is the mean of the buckets of all ranks: that
  /// buffer, or any tensor of its dtype and number of elements. Gradients are
  /// replaced by it when the backward ends. Inside join_uneven_inputs, ranks
  /// without data call it with buckets of zeros, and drop the result.
  ///
  /// With a comm_wrapper, the buffer is in the wrapper's dtype. An exception
  /// ends the backward on this rank.
  std::function<c10::intrusive_ptr<c10::ivalue::Future>(
      c10d::GradBucket& bucket,
      const BucketContext& ranks)>
      reduce;
  /// What later calls depend on, different on each rank; saved with
  /// checkpoints, and given back by load_state(). Both or neither: without
  /// them, nothing of the hook is in checkpoints.
  std::function<StateDict()> state_dict = nullptr;
  std::function<void(const StateDict&)> load_state_dict = nullptr;
};

}  // namespace accelerate
