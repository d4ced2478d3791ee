#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "optim/optimizers/fused_batches.h"
#include "optim/optimizers/step_hooks.h"

namespace accelerate::detail {

// One step of all groups of an optimizer of LibTorch's class of this name, or of
// a class with its options and states.

void step_adamw(torch::optim::Optimizer& optimizer, const at::Tensor& divisor);
void step_adam(torch::optim::Optimizer& optimizer, const at::Tensor& divisor);
void step_sgd(torch::optim::Optimizer& optimizer, const at::Tensor& divisor);
void step_adagrad(
    torch::optim::Optimizer& optimizer,
    const at::Tensor& divisor);
void step_rmsprop(
    torch::optim::Optimizer& optimizer,
    const at::Tensor& divisor);

/// Whether step_sgd() computes in fp32 instead of by LibTorch's kernel.
bool needs_float_sgd(const at::Tensor& parameter);

// Functions that these steps share.

/// Throws ConfigError for a sparse gradient.
bool has_gradient(const at::Tensor& parameter);

/// Throws ConfigError: state created while a step is recorded would be created
/// again in each replay.
[[noreturn]] void throw_state_is_missing();

/// The typed state of a parameter, created at its first step.
template <class State, class Make>
State& state_of(auto& states, const at::Tensor& parameter, Make&& make) {
  void* const key = parameter.unsafeGetTensorImpl();
  if (StepHooks::recording() != nullptr && states.find(key) == states.end())
    throw_state_is_missing();
  auto& slot = states[key];
  if (!slot) slot = make();
  return static_cast<State&>(*slot);
}

/// Changes a parameter's state, in each replay if the step is recorded; undone
/// if the step turns out to be skipped, unless the program has replaced the
/// state by then.
template <class State>
void change_state(
    torch::optim::Optimizer& optimizer,
    const at::Tensor& parameter,
    State& state,
    void (*make)(State&),
    void (*undo)(State&)) {
  StepHooks* const hooks = StepHooks::current();
  if (hooks == nullptr) return make(state);
  const auto on_state = [&states = optimizer.state(),
                         key = parameter.unsafeGetTensorImpl(),
                         known = &state](void (*change)(State&)) {
    const auto found = states.find(key);
    if (found != states.end() && found->second.get() == known) change(*known);
  };
  hooks->change(
      [on_state, make] { on_state(make); },
      [on_state, undo] { on_state(undo); });
}

/// Counts one step more. Returns the number of this step and, if it is recorded,
/// the function that reads it anew.
template <class State>
std::pair<std::int64_t, std::function<double()>> count_step(
    torch::optim::Optimizer& optimizer,
    const at::Tensor& parameter,
    State& state) {
  const std::int64_t step = state.step() + 1;
  change_state<State>(
      optimizer,
      parameter,
      state,
      [](State& counted) { counted.step(counted.step() + 1); },
      [](State& counted) { counted.step(counted.step() - 1); });
  if (StepHooks::recording() == nullptr) return {step, nullptr};
  return {step, [&state] { return static_cast<double>(state.step()); }};
}

/// Calls a kernel with a group's learning rate as a number; in a recorded step,
/// as a tensor. If the step may be skipped, the kernel also gets found_inf().
template <class Options, class Kernel>
void run_with_rate(
    torch::optim::Optimizer& optimizer,
    std::size_t group,
    const Batch& batch,
    Kernel&& kernel) {
  const auto rate = [&optimizer, group] {
    return static_cast<const Options&>(
               optimizer.param_groups()[group].options())
        .lr();
  };
  std::optional<at::Tensor> found_inf;
  const StepHooks* const hooks = StepHooks::current();
  if (hooks != nullptr && hooks->found_inf().defined())
    found_inf = hooks->found_inf().to(batch.device);
  if (RecordingHooks* const recording = StepHooks::recording()) {
    kernel(recording->number(batch.device, rate), batch.divisor, found_inf);
  } else {
    kernel(rate(), batch.divisor, found_inf);
  }
}

}  // namespace accelerate::detail
