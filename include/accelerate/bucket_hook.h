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
  /// Divisor that turns a sum over the ranks into their mean: the number of
  /// ranks, or, inside join_uneven_inputs, the number that JoinOptions select.
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
  /// all ranks. So hooks match if they start the same collectives in each call.
  /// It must not start a backward, and should not block: the pass continues
  /// while messages are in flight.
  ///
  /// The bucket lives until the function returns; its buffer, 1-d in the
  /// gradients' dtype, lives until the future completes, and can be changed in
  /// place. The future's value must be the mean of all ranks' buckets: that
  /// buffer, or any tensor with its dtype and number of elements. It replaces
  /// the gradients when the backward ends. Inside join_uneven_inputs, ranks
  /// without data call the hook with buckets of zeros, and drop the result.
  ///
  /// With a comm_wrapper, the buffer is in the wrapper's dtype. An exception
  /// ends the backward on this rank.
  std::function<c10::intrusive_ptr<c10::ivalue::Future>(
      c10d::GradBucket& bucket,
      const BucketContext& ranks)>
      reduce;
  /// Per-rank state that later calls depend on, saved with checkpoints and
  /// restored by load_state(). Set both or neither: without them, checkpoints
  /// hold nothing of the hook.
  std::function<StateDict()> state_dict = nullptr;
  /// Restores what state_dict() returned.
  std::function<void(const StateDict&)> load_state_dict = nullptr;
};

}  // namespace accelerate
