#include "parallel/replicate/gradient_averager.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/collectives/any_rank.h"
#include "comm/group/group_impl.h"
#include "parallel/replicate/average_gradients.h"

namespace accelerate::detail {

void guard_collective(
    const Group& group,
    const char* operation,
    const std::function<void()>& body) {
  const std::uint64_t sequence = ++group.impl()->sequence;
  const StepPartScope part(
      group.impl()->world->steps.get(), StepPart::communication);
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_collective(*group.impl(), operation, sequence, error);
  }
}

GradientAverager::GradientAverager(
    Group group,
    TrainableRows rows,
    const ReplicateOptions& options)
    : group_(std::move(group)), options_(options), rows_(std::move(rows)) {
  reduction_ = make_reduction(
      options_, [this](const at::Tensor& tensor) -> const std::string& {
        return rows_.names_by_tensor.at(tensor.unsafeGetTensorImpl());
      });
  connect(group_);
}

void GradientAverager::before_backward(
    bool sync_gradients,
    const at::Tensor& loss) {
  if (!sync_gradients) return pending_.begin_backward(rows_.tensors);
  // The step's gradients are already being sent.
  if (has_begun_step()) return;
  if (options_.static_graph) reducer_->restore_uses();
  // prepare_for_forward() counts iterations, so call it once per reduction,
  // however many forwards lead to it.
  reducer_->prepare_for_forward();
  reducer_->keep_times(listener() != nullptr);
  // Unused parameters are those that the loss does not depend on.
  reducer_->prepare_for_backward({loss});
  if (!options_.find_unused_parameters) return;
  for (std::size_t i = 0; i < rows_.tensors.size(); ++i) {
    if (pending_.contains(i)) reducer_->mark_used(i);
  }
}

void GradientAverager::after_backward(bool sync_gradients) {
  if (!sync_gradients) {
    if (has_begun_step()) step_reducer_->end_last();
    return pending_.end_backward(rows_.tensors);
  }
  if (has_begun_step()) return end_step();
  const bool is_first = std::exchange(is_first_reduction_, false);
  if (reducer_->was_reached(is_first)) {
    end_reduction(is_first);
    report_overlap(reducer_->times());
  } else {
    pass_by(is_first);
  }
  pending_.clear();
}

void GradientAverager::after_plain_backward(bool sync_gradients) {
  if (!sync_gradients) return pending_.add_backward(rows_.tensors);
  if (has_hook() && round_ == nullptr) {
    before_last_gradients(rows_.tensors);
    return end_step();
  }
  announce(JoinEvent::Kind::pending_gradients);
  average_pending(rows_.tensors, /*has_gradients=*/true);
  pending_.clear();
}

void GradientAverager::before_last_gradients(
    const std::vector<at::Tensor>& parameters) {
  if (!step_reducer_) {
    step_reducer_ = std::make_unique<StepReducer>(
        rows_, group_, options_, [this](c10d::GradBucket& bucket) {
          return reduce(bucket);
        });
  }
  step_reducer_->begin_last(parameters);
}

void GradientAverager::abandon() {
  if (step_reducer_) step_reducer_->abandon();
}

void GradientAverager::average_rows(TrainableRows rows) {
  if (pending_.had_backward()) {
    std::vector<at::Tensor> leaving = rows_.tensors;
    std::erase_if(leaving, [&](const at::Tensor& tensor) {
      return rows.names_by_tensor.contains(tensor.unsafeGetTensorImpl());
    });
    if (!leaving.empty()) average_pending(leaving, pending_.any());
  }
  step_reducer_.reset();
  reducer_.reset();
  rows_ = std::move(rows);
  pending_.take(rows_.tensors);
  connect(group_);
}

void GradientAverager::average_among(Group group) {
  group_ = std::move(group);
  step_reducer_.reset();
  connect(group_);
}

// A Reducer accepts a hook only before its first backward, so the join gets
// its own Reducer.
void GradientAverager::begin_join(JoinRound& round, int model) {
  round_ = &round;
  join_index_ = model;
  was_announced_ = false;
  connect(round.group());
}

bool GradientAverager::take_announced() {
  return std::exchange(was_announced_, false);
}

void GradientAverager::shadow(const JoinEvent& event) {
  switch (event.kind) {
    case JoinEvent::Kind::bucket:
      return shadow_bucket(event.bucket);
    case JoinEvent::Kind::pending_gradients:
      return shadow_pending_gradients();
    case JoinEvent::Kind::end_of_backward:
      reducer_->push_rebuilt_params_for_all_indices();
      rebuild_buckets();
  }
}

void GradientAverager::end_join() {
  round_ = nullptr;
  empty_buckets_.clear();
  connect(group_);
}

StepListener* GradientAverager::listener() const {
  return group().impl()->world->steps->get();
}

void GradientAverager::report_overlap(const ReductionTimes& times) const {
  StepListener* const to = listener();
  if (to == nullptr) return;
  to->overlapped(times.hidden_ns, times.exposed_ns);
}

void GradientAverager::end_step() {
  guard_collective(group(), "averaging the gradients of a step", [&] {
    step_reducer_->finish();
  });
  report_overlap(step_reducer_->times());
  pending_.clear();
}

void GradientAverager::rebuild_buckets() {
  if (reducer_->rebuild_buckets())
    reducer_->share_buckets(*group().impl()->connection);
}

void GradientAverager::end_reduction(bool is_first) {
  if (options_.static_graph && is_first) {
    // The first backward only learns which parameters are used.
    reducer_->delay_all_reduce();
    reducer_->remember_uses();
  }
  announce(JoinEvent::Kind::end_of_backward);
  try {
    // Fails if this backward reached some parameters and not others.
    rebuild_buckets();
  } catch (const c10::DistError&) {
    throw;
  } catch (const c10::Error& error) {
    explain_unused(error);
  }
  reducer_->ignore_gradients();
}

void GradientAverager::pass_by(bool is_first) {
  is_first_reduction_ = is_first;
  // The reducer still expects gradients.
  reducer_->ignore_gradients();
  if (!pending_.had_backward()) return;
  announce(JoinEvent::Kind::pending_gradients);
  average_pending(rows_.tensors, pending_.any());
}

void GradientAverager::average_pending(
    const std::vector<at::Tensor>& parameters,
    bool has_gradients) {
  guard_collective(
      group(), "averaging the gradients of earlier micro-steps", [&] {
        if (!is_true_on_any_rank(group(), has_gradients)) return;
        average_gradients(
            group(),
            parameters,
            {.divisor = divisor(), .message_bytes = options_.bucket_bytes});
      });
}

void GradientAverager::announce(JoinEvent::Kind kind, int bucket) {
  if (round_ == nullptr) return;
  was_announced_ = true;
  round_->announce(JoinEvent{kind, join_index_, bucket});
}

double GradientAverager::divisor() const {
  return round_ != nullptr ? round_->divisor() : group_.size();
}

bool GradientAverager::has_hook() const {
  return options_.comm_hook != CommHook::none ||
      options_.bucket_hook != nullptr;
}

const Group& GradientAverager::group() const {
  return round_ != nullptr ? round_->group() : group_;
}

void GradientAverager::connect(const Group& group) {
  reducer_.reset();
  guard_collective(group, "making buckets of gradients", [&] {
    reducer_ = make_reducer(rows_, group, options_);
  });
  is_first_reduction_ = true;
  if (round_ != nullptr || has_hook()) {
    reducer_->register_comm_hook(std::make_unique<CommHookFunction>(
        [this](c10d::GradBucket& bucket) { return reduce(bucket); }));
  }
  reducer_->ignore_gradients();
}

FutureTensor GradientAverager::reduce(c10d::GradBucket& bucket) {
  announce(JoinEvent::Kind::bucket, static_cast<int>(bucket.getIndex()));
  return reduction_->reduce(bucket, {group().impl()->process_group, divisor()});
}

void GradientAverager::shadow_bucket(int index) {
  const at::NoGradGuard no_grad;
  guard_collective(group(), "averaging gradients", [&] {
    if (index == 0) {
      empty_buckets_ = reducer_->get_grad_buckets(/*return_zero_tensors=*/true);
      futures_.clear();
    }
    c10d::GradBucket& bucket =
        empty_buckets_.at(static_cast<std::size_t>(index));
    const auto& process_group = group().impl()->process_group;
    futures_.push_back(reduction_->reduce(bucket, {process_group, divisor()}));
    if (!bucket.isLast()) return;
    for (const FutureTensor& future : futures_) future->waitAndThrow();
    if (!options_.find_unused_parameters) return;
    // The other ranks now reduce the map of used parameters.
    std::vector<at::Tensor> none_used{
        at::zeros_like(reducer_->get_local_used_map_on_device())};
    process_group->allreduce(none_used)->wait();
  });
}

void GradientAverager::shadow_pending_gradients() {
  // Stand-ins without gradients contribute nothing, and keep the result out of
  // this rank's parameters.
  std::vector<at::Tensor> stand_ins;
  for (const at::Tensor& parameter : rows_.tensors)
    stand_ins.push_back(parameter.detach());
  average_pending(stand_ins, /*has_gradients=*/false);
}

void GradientAverager::explain_unused(const c10::Error& error) {
  if (!reducer_->is_unfinished()) throw;
  const std::vector<std::string> unused =
      names_without_gradient(error.what_without_backtrace(), rows_);
  throw ConfigError(format(
      "[parallel] the backward pass gave no gradient to {}, so ranks would "
      "wait for each other; use them in the loss, freeze them "
      "(requires_grad_(false)) before prepare(), or set "
      "ReplicateOptions::find_unused_parameters",
      unused.empty() ? std::string("some parameters") : join(unused, ", ")));
}

}  // namespace accelerate::detail
