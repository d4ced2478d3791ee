#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "parallel/join_round.h"
#include "parallel/replicate/gradient_reduction.h"
#include "parallel/replicate/pending_gradients.h"
#include "parallel/replicate/replica_join.h"
#include "parallel/replicate/replica_reducer.h"
#include "parallel/replicate/trainable_rows.h"

namespace accelerate::detail {

/// Calls `body`, a collective of `group`; `operation` is its name in errors.
void guard_collective(
    const Group& group,
    const char* operation,
    const std::function<void()>& body);

/// Averages the gradients of some parameters over the ranks that have replicas
/// of them, in each backward that ends a window, or in the last ones of a
/// pipeline's step.
class GradientAverager {
 public:
  /// `group` must have several ranks, `rows` at least one parameter.
  GradientAverager(
      Group group,
      TrainableRows rows,
      const ReplicateOptions& options);
  GradientAverager(const GradientAverager&) = delete;
  GradientAverager& operator=(const GradientAverager&) = delete;

  [[nodiscard]] GradientReduction& reduction() const { return *reduction_; }

  void before_backward(bool sync_gradients, const at::Tensor& loss);
  void after_backward(bool sync_gradients);
  /// Called after a backward that the program ran itself, which computed some
  /// gradients: averages all of them, after the backward instead of during it.
  void after_plain_backward(bool sync_gradients);
  /// Called when the next backward of a pipeline's step is the last one for
  /// `parameters`; ignores those that are not the averager's.
  void before_last_gradients(const std::vector<at::Tensor>& parameters);
  /// Discards a step that failed.
  void abandon();
  /// Called when the optimizer has used all gradients.
  void after_step() { pending_.clear(); }

  [[nodiscard]] const TrainableRows& rows() const { return rows_; }
  /// From now on, averages the gradients of these parameters. Gradients that
  /// earlier micro-steps left in other parameters are averaged now. Collective,
  /// between backwards, not inside a join.
  void average_rows(TrainableRows rows);
  /// From now on, averages among the ranks of `group`, which must be several.
  /// Called between steps, not inside a join; does not communicate.
  void average_among(Group group);

  /// From here to end_join(), averages over the round's group.
  void begin_join(JoinRound& round, int model);
  [[nodiscard]] ReplicaJoin& join() { return join_; }
  /// Takes part in the collective that another rank has announced.
  void shadow(const JoinEvent& event);
  void end_join();

 private:
  /// Ends a backward that did not reach them. Earlier micro-steps of the window
  /// may have left gradients; the ranks agree on whether any rank has some.
  void pass_by();
  void average_pending(
      const std::vector<at::Tensor>& parameters,
      bool has_gradients);
  /// Gives the parameters the means of their gradients.
  void finish();
  /// From now on, gradients are averaged among the ranks of `group`.
  void connect(const Group& group);
  FutureTensor reduce(c10d::GradBucket& bucket);

  /// Whether buckets are plain sums of gradients that were divided before.
  [[nodiscard]] bool sums_scaled() const;
  [[nodiscard]] double divisor() const;
  [[nodiscard]] const Group& group() const;

  Group group_;
  ReplicateOptions options_;
  TrainableRows rows_;
  std::unique_ptr<GradientReduction> reduction_;
  std::unique_ptr<ReplicaReducer> reducer_;
  PendingGradients pending_;
  ReplicaJoin join_;
};

}  // namespace accelerate::detail
