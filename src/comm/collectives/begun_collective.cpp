#include "comm/collectives/begun_collective.h"

#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

template <class Begin>
BegunCollective BegunCollective::begin(
    const Group& group,
    const char* name,
    const at::Tensor& what,
    Begin&& begin) {
  BegunCollective begun;
  if (group.size() == 1 || what.numel() == 0) return begun;
  GroupImpl& impl = *group.impl();
  const at::NoGradGuard no_grad;
  begun.group_ = group;
  begun.name_ = name;
  begun.sequence_ = ++impl.sequence;
  if (impl.calls) {
    const at::IntArrayRef sizes = what.sizes();
    begun.note_ = std::make_shared<NotedCallScope>(
        impl.calls.get(),
        NotedCall{
            .operation = name,
            .dtype = c10::toString(what.scalar_type()),
            .shape = {sizes.data(), sizes.size()}});
  }
  try {
    if (impl.world->debug) {
      check_agreement(
          impl,
          name,
          format("{} {}", c10::toString(what.scalar_type()), what.sizes()));
    }
    begun.work_ = std::forward<Begin>(begin)(*impl.connection);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_collective(
        impl,
        name,
        begun.sequence_,
        error,
        begun.note_ ? begun.note_->number() : begun.sequence_);
  }
  return begun;
}

BegunCollective BegunCollective::all_reduce(
    const Group& group,
    const at::Tensor& tensor) {
  return begin(group, "all_reduce", tensor, [&](Connection& connection) {
    return connection.all_reduce(tensor, ReduceOp::sum);
  });
}

BegunCollective BegunCollective::reduce_scatter(
    const Group& group,
    const at::Tensor& output,
    const at::Tensor& input) {
  return begin(group, "reduce_scatter", input, [&](Connection& connection) {
    return connection.reduce_scatter(output, input, ReduceOp::sum);
  });
}

BegunCollective BegunCollective::all_gather(
    const Group& group,
    const at::Tensor& output,
    const at::Tensor& input) {
  return begin(group, "all_gather", input, [&](Connection& connection) {
    return connection.all_gather(output, input);
  });
}

void BegunCollective::run_in_background() {
  if (work_) group_.impl()->connection->run_in_background();
}

void BegunCollective::wait() {
  if (!work_) return;
  GroupImpl& impl = *group_.impl();
  const auto note = std::exchange(note_, nullptr);
  const at::NoGradGuard no_grad;
  const StepPartScope part(impl.world->steps.get(), StepPart::communication);
  try {
    std::exchange(work_, Work())->wait();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_collective(
        impl, name_, sequence_, error, note ? note->number() : sequence_);
  }
}

}  // namespace accelerate::detail
