#include "comm/autograd/region_entrance.h"

#include <optional>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "comm/autograd/region_call.h"

namespace accelerate::detail {

/// The data that the two nodes share.
struct EnteringRegion : torch::CustomClassHolder {
  explicit EnteringRegion(c10::intrusive_ptr<RegionCall> how)
      : call(std::move(how)) {}

  c10::intrusive_ptr<RegionCall> call;
  /// The gradient in flight, from one node's backward to the other's.
  std::optional<PendingResult> pending;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

c10::intrusive_ptr<EnteringRegion> entering_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<EnteringRegion>(
      context->saved_data["entering"].toCapsule());
}

struct OuterNode : torch::autograd::Function<OuterNode> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& tensor,
      const c10::intrusive_ptr<EnteringRegion>& entering) {
    context->saved_data["entering"] = c10::IValue::make_capsule(entering);
    return tensor.view_as(tensor);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto entering = entering_of(context);
    if (entering->pending) {
      entering->pending->wait();
      entering->pending.reset();
    }
    return {std::move(gradients.front()), at::Tensor()};
  }
};

struct InnerNode : torch::autograd::Function<InnerNode> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& tensor,
      const c10::intrusive_ptr<EnteringRegion>& entering) {
    context->saved_data["entering"] = c10::IValue::make_capsule(entering);
    return result_of(tensor, *entering->call);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto entering = entering_of(context);
    const RegionCall& call = *entering->call;
    const auto of_gradient = c10::make_intrusive<RegionCall>(
        gradient_of(call.op), call.group, call.dim, call.begins);
    if (at::GradMode::is_enabled())
      return {record_collective(gradients.front(), of_gradient), at::Tensor()};
    PendingResult pending = begin_collective(gradients.front(), *of_gradient);
    pending.collective.run_in_background();
    const at::Tensor gradient = pending.tensor;
    entering->pending = std::move(pending);
    return {gradient, at::Tensor()};
  }
};

}  // namespace

struct RegionEntrance::State {
  /// Null without a collective.
  c10::intrusive_ptr<EnteringRegion> entering;
  at::Tensor outside;
  std::uint64_t between = 0;
  bool is_recorded = false;
  at::Tensor inside = {};
};

RegionEntrance::RegionEntrance(std::shared_ptr<State> state)
    : state_(std::move(state)) {
  State& entrance = *state_;
  const bool has_collective =
      entrance.entering && entrance.entering->call->group.size() > 1;
  if (!has_collective) entrance.entering.reset();
  entrance.is_recorded = has_collective && at::GradMode::is_enabled() &&
      entrance.outside.requires_grad();
  if (entrance.is_recorded)
    entrance.outside = OuterNode::apply(entrance.outside, entrance.entering);
  entrance.between = at::sequence_number::get_and_increment();
}

RegionEntrance RegionEntrance::copy(
    const at::Tensor& tensor,
    const Group& group) {
  return RegionEntrance(std::make_shared<State>(
      State{c10::make_intrusive<EnteringRegion>(copy_call(group)), tensor}));
}

RegionEntrance RegionEntrance::gather(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group,
    std::span<const std::int64_t> sizes) {
  return RegionEntrance(std::make_shared<State>(State{
      c10::make_intrusive<EnteringRegion>(
          gather_call(tensor, dim, group, GatheredGradient::partial, sizes)),
      tensor}));
}

RegionEntrance RegionEntrance::slice(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group) {
  return RegionEntrance(std::make_shared<State>(State{
      c10::make_intrusive<EnteringRegion>(slice_call(tensor, dim, group)),
      tensor}));
}

RegionEntrance RegionEntrance::as_it_is(const at::Tensor& tensor) {
  return RegionEntrance(std::make_shared<State>(State{{}, tensor}));
}

const at::Tensor& RegionEntrance::enter() {
  State& entrance = *state_;
  if (entrance.inside.defined()) return entrance.inside;
  if (entrance.is_recorded) {
    entrance.inside = InnerNode::apply(entrance.outside, entrance.entering);
  } else if (
      !entrance.entering || entrance.entering->call->op == RegionOp::copy) {
    entrance.inside = entrance.outside;
  } else {
    entrance.inside = result_of(entrance.outside, *entrance.entering->call);
  }
  return entrance.inside;
}

std::uint64_t RegionEntrance::between() const { return state_->between; }

}  // namespace accelerate::detail
