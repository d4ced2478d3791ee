#include "parallel/replicate/gradient_averager.h"

#include <string>
#include <utility>

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

namespace {

// A gradient's identity, and the number of times it was written to.
std::pair<const void*, std::int64_t> state_of(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return {nullptr, 0};
  return {
      gradient.unsafeGetTensorImpl(),
      gradient.is_inference() ? 0 : gradient._version()};
}

}  // namespace

void PendingGradients::begin_backward(
    const std::vector<at::Tensor>& parameters) {
  had_backward_ = true;
  before_.clear();
  for (const at::Tensor& parameter : parameters)
    before_.push_back(state_of(parameter));
}

void PendingGradients::end_backward(const std::vector<at::Tensor>& parameters) {
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (state_of(parameters[i]) == before_[i]) continue;
    changed_.resize(before_.size());
    changed_[i] = true;
  }
  before_.clear();
}

void PendingGradients::add_backward(const std::vector<at::Tensor>& parameters) {
  had_backward_ = true;
  changed_.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    changed_[i] = changed_[i] || parameters[i].grad().defined();
}

void PendingGradients::take(const std::vector<at::Tensor>& parameters) {
  before_.clear();
  changed_.clear();
  if (had_backward_) add_backward(parameters);
}

void PendingGradients::clear() {
  had_backward_ = false;
  changed_.clear();
}

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
        return rows_.names[rows_.numbers.at(tensor.unsafeGetTensorImpl())];
      });
  connect(group_);
}

void GradientAverager::before_backward(
    bool sync_gradients,
    const at::Tensor& loss) {
  if (!sync_gradients) return pending_.begin_backward(rows_.tensors);
  // The step's gradients are already being sent.
  if (reducer_->has_begun_step()) return;
  reducer_->begin(
      loss, [this](std::size_t row) { return pending_.contains(row); });
}

void GradientAverager::after_backward(bool sync_gradients) {
  const bool is_step = reducer_->has_begun_step();
  if (!sync_gradients) {
    if (is_step) reducer_->end_last();
    return pending_.end_backward(rows_.tensors);
  }
  if (is_step) {
    finish();
  } else if (reducer_->was_reached()) {
    end_reduction();
  } else {
    pass_by();
  }
  pending_.clear();
}

void GradientAverager::after_plain_backward(bool sync_gradients) {
  if (!sync_gradients) return pending_.add_backward(rows_.tensors);
  if (has_hook() && round_ == nullptr) {
    before_last_gradients(rows_.tensors);
    finish();
  } else {
    announce(JoinEvent::Kind::pending_gradients);
    average_pending(rows_.tensors, /*has_gradients=*/true);
  }
  pending_.clear();
}

void GradientAverager::before_last_gradients(
    const std::vector<at::Tensor>& parameters) {
  reducer_->begin_last(parameters);
}

void GradientAverager::abandon() { reducer_->abandon(); }

void GradientAverager::average_rows(TrainableRows rows) {
  if (pending_.had_backward()) {
    std::vector<at::Tensor> leaving = rows_.tensors;
    std::erase_if(leaving, [&](const at::Tensor& tensor) {
      return rows.contains(tensor);
    });
    if (!leaving.empty()) average_pending(leaving, pending_.any());
  }
  reducer_.reset();
  rows_ = std::move(rows);
  pending_.take(rows_.tensors);
  connect(group_);
}

void GradientAverager::average_among(Group group) {
  group_ = std::move(group);
  connect(group_);
}

// The join gets buckets of its own, which its ranks share.
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
      return;
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

void GradientAverager::finish() {
  guard_collective(group(), "averaging gradients", [&] { reducer_->finish(); });
  if (StepListener* const to = listener()) {
    const ReductionTimes& times = reducer_->times();
    to->overlapped(times.hidden_ns, times.exposed_ns);
  }
}

void GradientAverager::end_reduction() {
  require_complete();
  finish();
  announce(JoinEvent::Kind::end_of_backward);
}

void GradientAverager::require_complete() {
  const std::vector<std::string> missing = reducer_->missing();
  if (missing.empty()) return;
  throw ConfigError(format(
      "[parallel] the backward pass gave no gradient to \"{}\", so ranks would "
      "wait for each other; use them in the loss, freeze them "
      "(requires_grad_(false)) before prepare(), or set "
      "ReplicateOptions::find_unused_parameters",
      join(missing, "\", \"")));
}

void GradientAverager::pass_by() {
  reducer_->abandon();
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
  BucketMeans means{
      .reduce = [this](c10d::GradBucket& bucket) { return reduce(bucket); },
      .arranges = round_ == nullptr};
  if (sums_scaled()) means.scale = 1.0 / group.size();
  guard_collective(group, "making buckets of gradients", [&] {
    reducer_ = std::make_unique<ReplicaReducer>(
        rows_, group, options_, std::move(means));
  });
}

// In a join, the divisor depends on which ranks have data left.
bool GradientAverager::sums_scaled() const {
  return round_ == nullptr && !has_hook();
}

FutureTensor GradientAverager::reduce(c10d::GradBucket& bucket) {
  announce(JoinEvent::Kind::bucket, static_cast<int>(bucket.getIndex()));
  const ReductionContext context{group().impl()->process_group, divisor()};
  if (sums_scaled()) return sum_over_ranks(bucket.getBuffer(), context);
  return reduction_->reduce(bucket, context);
}

void GradientAverager::shadow_bucket(int index) {
  const at::NoGradGuard no_grad;
  guard_collective(group(), "averaging gradients", [&] {
    if (index == 0) {
      futures_.clear();
      empty_buckets_.clear();
    }
    c10d::GradBucket& bucket = empty_buckets_.emplace_back(
        reducer_->zeros(static_cast<std::size_t>(index)));
    futures_.push_back(
        reduction_->reduce(bucket, {group().impl()->process_group, divisor()}));
    if (!bucket.isLast()) return;
    for (const FutureTensor& future : futures_) future->waitAndThrow();
    reducer_->finish_without_gradients();
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

}  // namespace accelerate::detail
