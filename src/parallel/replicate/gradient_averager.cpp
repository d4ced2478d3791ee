#include "parallel/replicate/gradient_averager.h"

#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/collectives/any_rank.h"
#include "comm/group/group_impl.h"
#include "parallel/replicate/average_gradients.h"

namespace accelerate::detail {

namespace {

void require_complete(const ReplicaReducer& reducer) {
  const std::vector<std::string> missing = reducer.missing();
  if (missing.empty()) return;
  throw ConfigError(format(
      "[parallel] the backward pass gave no gradient to \"{}\", so ranks would "
      "wait for each other; use them in the loss, freeze them "
      "(requires_grad_(false)) before prepare(), or set "
      "ReplicateOptions::find_unused_parameters",
      join(missing, "\", \"")));
}

bool has_hook(const ReplicateOptions& options) {
  return options.comm_hook != CommHook::none || options.bucket_hook != nullptr;
}

}  // namespace

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
    require_complete(*reducer_);
    finish();
    join_.announce(JoinEvent::Kind::end_of_backward);
  } else {
    pass_by();
  }
  pending_.clear();
}

void GradientAverager::after_plain_backward(bool sync_gradients) {
  if (!sync_gradients) return pending_.add_backward(rows_.tensors);
  if (has_hook(options_) && join_.round() == nullptr) {
    before_last_gradients(rows_.tensors);
    finish();
  } else {
    join_.announce(JoinEvent::Kind::pending_gradients);
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
  join_.begin(round, model);
  connect(round.group());
}

void GradientAverager::shadow(const JoinEvent& event) {
  switch (event.kind) {
    case JoinEvent::Kind::bucket:
      return guard_collective(group(), "averaging gradients", [&] {
        join_.shadow_bucket(
            event.bucket,
            *reducer_,
            *reduction_,
            {group().impl()->process_group, divisor()});
      });
    case JoinEvent::Kind::pending_gradients: {
      // Stand-ins without gradients contribute nothing, and keep the result
      // out of this rank's parameters.
      std::vector<at::Tensor> stand_ins;
      for (const at::Tensor& parameter : rows_.tensors)
        stand_ins.push_back(parameter.detach());
      return average_pending(stand_ins, /*has_gradients=*/false);
    }
    case JoinEvent::Kind::end_of_backward:
      return;
  }
}

void GradientAverager::end_join() {
  join_.end();
  connect(group_);
}

void GradientAverager::finish() {
  guard_collective(group(), "averaging gradients", [&] { reducer_->finish(); });
  if (StepListener* const to = group().impl()->world->steps->get()) {
    const ReductionTimes& times = reducer_->times();
    to->overlapped(times.hidden_ns, times.exposed_ns);
  }
}

void GradientAverager::pass_by() {
  reducer_->abandon();
  if (!pending_.had_backward()) return;
  join_.announce(JoinEvent::Kind::pending_gradients);
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

double GradientAverager::divisor() const {
  return join_.round() != nullptr ? join_.round()->divisor() : group_.size();
}

const Group& GradientAverager::group() const {
  return join_.round() != nullptr ? join_.round()->group() : group_;
}

void GradientAverager::connect(const Group& group) {
  reducer_.reset();
  BucketMeans means{
      .reduce = [this](c10d::GradBucket& bucket) { return reduce(bucket); },
      .arranges = join_.round() == nullptr};
  if (sums_scaled()) means.scale = 1.0 / group.size();
  guard_collective(group, "making buckets of gradients", [&] {
    reducer_ = std::make_unique<ReplicaReducer>(
        rows_, group, options_, std::move(means));
  });
}

// In a join, the divisor depends on which ranks have data left.
bool GradientAverager::sums_scaled() const {
  return join_.round() == nullptr && !has_hook(options_);
}

FutureTensor GradientAverager::reduce(c10d::GradBucket& bucket) {
  join_.announce(JoinEvent::Kind::bucket, static_cast<int>(bucket.getIndex()));
  const ReductionContext context{group().impl()->process_group, divisor()};
  if (sums_scaled()) return sum_over_ranks(bucket.getBuffer(), context);
  return reduction_->reduce(bucket, context);
}

}  // namespace accelerate::detail
