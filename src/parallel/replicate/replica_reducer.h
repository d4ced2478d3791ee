#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "parallel/replicate/gradient_buckets.h"
#include "parallel/replicate/gradient_reduction.h"
#include "parallel/replicate/trainable_rows.h"

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace accelerate::detail {

/// How long the reductions of one backward's buckets took.
struct ReductionTimes {
  std::int64_t hidden_ns = 0;   ///< while gradients were still computed
  std::int64_t exposed_ns = 0;  ///< after that
};

/// How a ReplicaReducer obtains the means of its buckets.
struct BucketMeans {
  /// Returns the mean of a bucket over the ranks. Called for buckets in order,
  /// on the thread that computes gradients.
  std::function<FutureTensor(c10d::GradBucket&)> reduce;
  /// If set, gradients are multiplied by it on their way into the buckets, and
  /// `reduce` returns the sum.
  std::optional<double> scale = std::nullopt;
  /// Whether all ranks begin the same backwards, so that they can agree on an
  /// order of gradients.
  bool arranges = true;
};

/// Averages gradients in buckets, each sent as soon as all of its gradients are
/// complete, in the same order on all ranks: in one backward, as c10d::Reducer
/// does, or in a step of several backwards, the last of which differs per
/// parameter (a pipeline's micro-batches).
///
/// Buckets follow the order in which the first backward computes gradients on
/// rank 0. It is read from the graph before that backward, so that all
/// backwards, also those of a resumed run, add gradients in the same order.
///
/// A parameter without a gradient on this rank contributes zero. If no rank has
/// one, none gets one.
class ReplicaReducer {
 public:
  /// `rows` must outlive the object. Collective.
  ReplicaReducer(
      const TrainableRows& rows,
      const Group& group,
      const ReplicateOptions& options,
      BucketMeans means);
  ~ReplicaReducer();
  ReplicaReducer(const ReplicaReducer&) = delete;
  ReplicaReducer& operator=(const ReplicaReducer&) = delete;

  /// Called before a backward that completes the gradients of all parameters.
  /// `has_gradient`: whether an earlier micro-step gave a row a gradient.
  /// Collective the first time that `loss` depends on a parameter.
  void begin(
      const at::Tensor& loss,
      const std::function<bool(std::size_t row)>& has_gradient);
  /// Whether that backward has reached any of the parameters.
  [[nodiscard]] bool was_reached() const { return was_reached_; }
  /// Names of parameters whose gradients are needed and were not computed.
  [[nodiscard]] std::vector<std::string> missing() const;

  /// Called before a backward that is the last one of a step for `parameters`.
  void begin_last(const std::vector<at::Tensor>& parameters);
  /// Called after that backward: parameters that it did not reach are complete
  /// as well.
  void end_last();
  /// Whether a step of several backwards has begun.
  [[nodiscard]] bool has_begun_step() const { return is_step_; }

  /// Completes the remaining gradients, waits for all means, and gives them to
  /// the parameters. Collective. Throws ConfigError, after that, if gradients
  /// were added to after they had been sent.
  void finish();
  /// Discards what has begun.
  void abandon();

  /// Takes part in finish() without having gradients. `bucket` of the reducer
  /// is all zeros on this rank.
  [[nodiscard]] c10d::GradBucket zeros(std::size_t bucket) const {
    return buckets_.zeros(bucket);
  }
  void finish_without_gradients();

  /// The times of the last finish().
  [[nodiscard]] const ReductionTimes& times() const { return times_; }

 private:
  class Hook;
  enum class State { computed_later, computed_now, complete };
  struct Row {
    State state = State::computed_later;
    bool has_gradient = false;
    int num_uses = 0;  // so far in this backward
    /// LibTorch's versions have different owning pointers.
    decltype(torch::autograd::impl::grad_accumulator(
        std::declval<const at::Tensor&>())) accumulator;
    std::uintptr_t hook = 0;
  };

  void add_hook(std::size_t row);
  void arrange(const at::Tensor& loss);
  void complete_unused(const at::Tensor& loss);
  /// Completes, with a static graph, the parameters that no backward uses.
  void complete_never_used();
  void on_gradient(std::size_t row);
  void complete(std::size_t row);
  void fill(std::size_t row);
  void send(std::size_t index);
  void learn_uses();
  [[nodiscard]] bool finds_owners() const;
  [[nodiscard]] std::vector<std::int64_t> own_gradients() const;
  void find_owners(const std::vector<std::int64_t>& own);
  void take(std::size_t index);
  void require_none_late(const std::set<std::size_t>& late) const;

  const TrainableRows& rows_;
  Group group_;
  ReplicateOptions options_;
  BucketMeans means_;
  GradientBuckets buckets_;

  // Backward runs on other threads if there is an accelerator.
  std::mutex mutex_;
  std::vector<Row> state_;
  std::vector<std::size_t> num_missing_;  // by bucket
  std::vector<FutureTensor> futures_;     // by bucket sent
  std::set<std::size_t> late_;  // rows added to after they were complete
  bool is_step_ = false;
  bool was_reached_ = false;
  bool is_arranged_ = false;
  /// How often a backward uses each row, with a static graph; empty until
  /// learned.
  std::vector<int> uses_;
  /// The number of ranks with a gradient for each row; empty if all have one.
  std::vector<std::int64_t> num_owners_;
  std::int64_t first_sent_ns_ = 0;
  ReductionTimes times_;
};

}  // namespace accelerate::detail
