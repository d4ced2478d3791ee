#include "optim/optimizers/fused.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/rmsprop.h>

#include <accelerate/error.h>
#include <accelerate/optimizers.h>

#include "optim/optimizers/fused_batches.h"
#include "optim/optimizers/step_hooks.h"

namespace accelerate {

namespace {

using detail::as_real;
using detail::Batch;
using detail::Batches;
using detail::LossClosure;
using detail::StepHooks;
using torch::optim::Optimizer;

// Changes a parameter's state, in each replay if the step is recorded; undone
// if the step turns out to be skipped, unless the program has replaced the
// state by then.
template <class State>
void change_state(
    Optimizer& optimizer,
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

// Counts one step more. Returns the number of this step and, if it is recorded,
// the function that reads it anew.
template <class State>
std::pair<std::int64_t, std::function<double()>>
count_step(Optimizer& optimizer, const at::Tensor& parameter, State& state) {
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

// Calls a kernel with a group's learning rate as a number; in a recorded step,
// as a tensor. If the step may be skipped, the kernel gets what says so.
template <class Options, class Kernel>
void run_with_rate(
    Optimizer& optimizer,
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
  if (StepHooks* const recording = StepHooks::recording()) {
    kernel(recording->number(batch.device, rate), batch.divisor, found_inf);
  } else {
    kernel(rate(), batch.divisor, found_inf);
  }
}

at::Tensor run_closure(const LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode with_gradients(true);
  return closure();
}

bool has_gradient(const at::Tensor& parameter) {
  if (!parameter.grad().defined()) return false;
  if (parameter.grad().is_sparse()) {
    throw ConfigError(
        "[optim] a fused optimizer was given a sparse gradient; use the "
        "torch::optim class of the same name, or an embedding without sparse "
        "gradients");
  }
  return true;
}

// LibTorch's SGD kernel for 16-bit numbers on the CPU (2.11) changes only the
// last few elements of a parameter.
bool needs_float_sgd(const at::Tensor& parameter) {
  return parameter.is_cpu() &&
      at::isReducedFloatingType(parameter.scalar_type());
}

void run_sgd_kernel(
    at::TensorList parameters,
    at::TensorList gradients,
    at::TensorList momenta,
    const torch::optim::SGDOptions& options,
    bool is_first_step,
    const auto& rate,
    const auto&... rest) {
  at::_fused_sgd_(
      parameters,
      gradients,
      momenta,
      options.weight_decay(),
      options.momentum(),
      rate,
      options.dampening(),
      options.nesterov(),
      /*maximize=*/false,
      is_first_step,
      rest...);
}

// Computes in fp32, one parameter at a time, so that only one is in memory
// twice.
void run_float_sgd(
    const Batch& batch,
    const torch::optim::SGDOptions& options,
    bool is_first_step) {
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    const at::Tensor parameter = batch.parameters[i].to(at::kFloat);
    const at::Tensor gradient = batch.gradients[i].to(at::kFloat);
    std::vector<at::Tensor> momentum;
    if (!batch.first.empty()) momentum = {batch.first[i].to(at::kFloat)};
    run_sgd_kernel(
        {parameter},
        {gradient},
        momentum,
        options,
        is_first_step,
        options.lr());
    batch.parameters[i].copy_(parameter);
    if (!batch.first.empty()) batch.first[i].copy_(momentum[0]);
  }
}

// State that is made while a step is recorded would be made in each replay.
[[noreturn]] void throw_state_is_missing() {
  throw ConfigError(
      "[optim] a step was recorded before the optimizer had its state for all "
      "parameters with gradients; let more steps run first (warmup_steps)");
}

// The typed state of a parameter, created at its first step.
template <class State, class Make>
State& state_of(auto& states, const at::Tensor& parameter, Make&& make) {
  void* const key = parameter.unsafeGetTensorImpl();
  if (StepHooks::recording() != nullptr && states.find(key) == states.end())
    throw_state_is_missing();
  auto& slot = states[key];
  if (!slot) slot = make();
  return static_cast<State&>(*slot);
}

// The states and options of Adam and AdamW have the same fields.
template <class State, class Options, class Kernel>
void adam_step(
    Optimizer& optimizer,
    const at::Tensor& divisor,
    Kernel&& kernel) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    const auto& options = static_cast<const Options&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!has_gradient(parameter)) continue;
      State& state = state_of<State>(optimizer.state(), parameter, [&] {
        auto made = std::make_unique<State>();
        made->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        made->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        return made;
      });
      if (options.amsgrad() && !state.max_exp_avg_sq().defined()) {
        if (StepHooks::recording() != nullptr) throw_state_is_missing();
        state.max_exp_avg_sq(
            at::zeros_like(parameter, at::MemoryFormat::Preserve));
      }
      auto [step, count] = count_step(optimizer, parameter, state);
      batches.add(
          parameter,
          step,
          state.exp_avg(),
          state.exp_avg_sq(),
          options.amsgrad() ? state.max_exp_avg_sq() : at::Tensor(),
          std::move(count));
    }
    batches.run(
        divisor, [&](const Batch& batch, const std::vector<at::Tensor>& steps) {
          run_with_rate<Options>(
              optimizer, i, batch, [&](const auto& rate, const auto&... rest) {
                kernel(
                    batch.parameters,
                    batch.gradients,
                    batch.first,
                    batch.second,
                    batch.largest,
                    steps,
                    rate,
                    std::get<0>(options.betas()),
                    std::get<1>(options.betas()),
                    options.weight_decay(),
                    options.eps(),
                    options.amsgrad(),
                    /*maximize=*/false,
                    rest...);
              });
        });
  }
}

void step_adamw(Optimizer& optimizer, const at::Tensor& divisor) {
  adam_step<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(
      optimizer, divisor, [](const auto&... arguments) {
        at::_fused_adamw_(arguments...);
      });
}

void step_adam(Optimizer& optimizer, const at::Tensor& divisor) {
  adam_step<torch::optim::AdamParamState, torch::optim::AdamOptions>(
      optimizer, divisor, [](const auto&... arguments) {
        at::_fused_adam_(arguments...);
      });
}

void step_sgd(Optimizer& optimizer, const at::Tensor& divisor) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    const auto& options =
        static_cast<const torch::optim::SGDOptions&>(group.options());
    Batches batches;
    // Step 0 marks the first step, in which the kernel fills the momentum
    // buffer.
    for (const at::Tensor& parameter : group.params()) {
      if (!has_gradient(parameter)) continue;
      if (options.momentum() == 0) {
        batches.add(parameter, 1, {});
        continue;
      }
      auto& state = state_of<torch::optim::SGDParamState>(
          optimizer.state(), parameter, [] {
            return std::make_unique<torch::optim::SGDParamState>();
          });
      const bool is_first = !state.momentum_buffer().defined();
      if (is_first && StepHooks::recording() != nullptr)
        throw_state_is_missing();
      if (is_first) {
        state.momentum_buffer(
            at::empty_like(parameter, at::MemoryFormat::Preserve));
        change_state<torch::optim::SGDParamState>(
            optimizer,
            parameter,
            state,
            [](auto&) {},
            [](auto& made) { made.momentum_buffer({}); });
      }
      batches.add(parameter, is_first ? 0 : 1, state.momentum_buffer());
    }
    batches.run(
        divisor, [&](const Batch& batch, const std::vector<at::Tensor>&) {
          const bool is_first_step = batch.step == 0;
          if (needs_float_sgd(batch.parameters[0])) {
            run_float_sgd(batch, options, is_first_step);
          } else {
            run_with_rate<torch::optim::SGDOptions>(
                optimizer, i, batch, [&](const auto&... rate) {
                  run_sgd_kernel(
                      batch.parameters,
                      batch.gradients,
                      batch.first,
                      options,
                      is_first_step,
                      rate...);
                });
          }
        });
  }
}

void step_adagrad(Optimizer& optimizer, const at::Tensor& divisor) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    const auto& options =
        static_cast<const torch::optim::AdagradOptions&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!has_gradient(parameter)) continue;
      auto& state = state_of<torch::optim::AdagradParamState>(
          optimizer.state(), parameter, [&] {
            auto made = std::make_unique<torch::optim::AdagradParamState>();
            made->sum(
                at::full_like(parameter, options.initial_accumulator_value()));
            return made;
          });
      // The constructor created the state before the parameter was moved or got
      // a master weight.
      if (state.sum().scalar_type() != parameter.scalar_type() ||
          state.sum().device() != parameter.device()) {
        if (StepHooks::recording() != nullptr) throw_state_is_missing();
        state.sum(state.sum().to(parameter.options()));
      }
      // The constructor left the imaginary parts at 0.
      if (state.step() == 0 && parameter.is_complex())
        as_real(state.sum()).fill_(options.initial_accumulator_value());
      auto [step, count] = count_step(optimizer, parameter, state);
      batches.add(parameter, step, state.sum(), {}, {}, std::move(count));
    }
    batches.run(
        divisor, [&](const Batch& batch, const std::vector<at::Tensor>& steps) {
          run_with_rate<torch::optim::AdagradOptions>(
              optimizer, i, batch, [&](const auto& rate, const auto&... rest) {
                at::_fused_adagrad_(
                    batch.parameters,
                    batch.gradients,
                    batch.first,
                    steps,
                    rate,
                    options.lr_decay(),
                    options.weight_decay(),
                    options.eps(),
                    /*maximize=*/false,
                    rest...);
              });
        });
  }
}

// LibTorch has no fused kernel for it, but some that take lists.
void run_rmsprop(
    const Batch& batch,
    const torch::optim::RMSpropOptions& options,
    const auto& rate,
    const auto&...) {
  std::vector<at::Tensor> gradients = batch.gradients;
  if (options.weight_decay() != 0)
    gradients =
        at::_foreach_add(gradients, batch.parameters, options.weight_decay());
  const double weight = 1 - options.alpha();
  at::_foreach_mul_(batch.first, options.alpha());
  at::_foreach_addcmul_(batch.first, gradients, gradients, weight);
  std::vector<at::Tensor> divisors;
  if (options.centered()) {
    at::_foreach_mul_(batch.largest, options.alpha());
    at::_foreach_add_(batch.largest, gradients, weight);
    divisors =
        at::_foreach_addcmul(batch.first, batch.largest, batch.largest, -1);
    at::_foreach_sqrt_(divisors);
  } else {
    divisors = at::_foreach_sqrt(batch.first);
  }
  at::_foreach_add_(divisors, options.eps());
  if (options.momentum() > 0) {
    at::_foreach_mul_(batch.second, options.momentum());
    at::_foreach_addcdiv_(batch.second, gradients, divisors);
  }
  if constexpr (std::is_same_v<decltype(rate), const at::Tensor&>) {
    const std::vector<at::Tensor> changes = options.momentum() > 0
        ? at::_foreach_mul(batch.second, rate)
        : at::_foreach_mul(at::_foreach_div(gradients, divisors), rate);
    at::_foreach_sub_(batch.parameters, changes);
  } else if (options.momentum() > 0) {
    at::_foreach_add_(batch.parameters, batch.second, -rate);
  } else {
    at::_foreach_addcdiv_(batch.parameters, gradients, divisors, -rate);
  }
}

void step_rmsprop(Optimizer& optimizer, const at::Tensor& divisor) {
  const StepHooks* const hooks = StepHooks::recording();
  if (hooks != nullptr && hooks->found_inf().defined()) {
    throw ConfigError(
        "[optim] a step of RMSprop cannot be recorded with fp16, since its "
        "kernels do not skip steps; use bf16, or Adam");
  }
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    const auto& options =
        static_cast<const torch::optim::RMSpropOptions&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!has_gradient(parameter)) continue;
      const auto zeros = [&] {
        return at::zeros_like(parameter, at::MemoryFormat::Preserve);
      };
      auto& state = state_of<torch::optim::RMSpropParamState>(
          optimizer.state(), parameter, [&] {
            auto made = std::make_unique<torch::optim::RMSpropParamState>();
            made->square_avg(zeros());
            return made;
          });
      if (hooks != nullptr &&
          ((options.momentum() > 0 && !state.momentum_buffer().defined()) ||
           (options.centered() && !state.grad_avg().defined()))) {
        throw_state_is_missing();
      }
      if (options.momentum() > 0 && !state.momentum_buffer().defined())
        state.momentum_buffer(zeros());
      if (options.centered() && !state.grad_avg().defined())
        state.grad_avg(zeros());
      count_step(optimizer, parameter, state);
      batches.add(
          parameter,
          1,
          state.square_avg(),
          options.momentum() > 0 ? state.momentum_buffer() : at::Tensor(),
          options.centered() ? state.grad_avg() : at::Tensor());
    }
    batches.run(
        divisor, [&](const Batch& batch, const std::vector<at::Tensor>&) {
          run_with_rate<torch::optim::RMSpropOptions>(
              optimizer, i, batch, [&](const auto&... rate) {
                run_rmsprop(batch, options, rate...);
              });
        });
  }
}

// Steps of LibTorch's own classes stay LibTorch's for tensors that it treats in
// its own way.
bool has_unusual_tensors(const Optimizer& optimizer) {
  return std::any_of(
      optimizer.param_groups().begin(),
      optimizer.param_groups().end(),
      [](const auto& group) {
        return std::any_of(
            group.params().begin(),
            group.params().end(),
            [](const at::Tensor& parameter) {
              const at::Tensor& gradient = parameter.grad();
              return gradient.defined() &&
                  (parameter.is_complex() || gradient.layout() != at::kStrided);
            });
      });
}

using Step = void (*)(Optimizer&, const at::Tensor& divisor);

template <Step kStep>
at::Tensor step_fused(
    Optimizer& optimizer,
    const LossClosure& closure,
    const at::Tensor& divisor) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = run_closure(closure);
  kStep(optimizer, divisor);
  return loss;
}

template <Step kStep>
at::Tensor step_like_libtorch(
    Optimizer& optimizer,
    const LossClosure& closure,
    const at::Tensor& divisor) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = run_closure(closure);
  if (has_unusual_tensors(optimizer)) {
    if (StepHooks::recording() != nullptr) {
      throw ConfigError(
          "[optim] a step with sparse gradients or complex parameters cannot "
          "be recorded, since LibTorch takes it one parameter at a time");
    }
    optimizer.step();
  } else {
    kStep(optimizer, divisor);
  }
  return loss;
}

}  // namespace

detail::FusedStep detail::fused_step_of(const Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::AdamW))
    return &step_like_libtorch<&step_adamw>;
  if (type == typeid(torch::optim::Adam))
    return &step_like_libtorch<&step_adam>;
  if (type == typeid(torch::optim::SGD)) return &step_like_libtorch<&step_sgd>;
  if (type == typeid(torch::optim::Adagrad))
    return &step_like_libtorch<&step_adagrad>;
  if (type == typeid(torch::optim::RMSprop))
    return &step_like_libtorch<&step_rmsprop>;
  if (type == typeid(optim::AdamW)) return &step_fused<&step_adamw>;
  if (type == typeid(optim::Adam)) return &step_fused<&step_adam>;
  if (type == typeid(optim::SGD)) return &step_fused<&step_sgd>;
  if (type == typeid(optim::Adagrad)) return &step_fused<&step_adagrad>;
  return nullptr;
}

bool detail::can_divide(const Optimizer& optimizer) {
  const FusedStep step = fused_step_of(optimizer);
  if (step == nullptr || step == &step_like_libtorch<&step_rmsprop> ||
      has_unusual_tensors(optimizer)) {
    return false;
  }
  const bool is_sgd =
      step == &step_like_libtorch<&step_sgd> || step == &step_fused<&step_sgd>;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      // The kernels' divisor is a float.
      if (parameter.scalar_type() == at::kDouble) return false;
      if (is_sgd && needs_float_sgd(parameter)) return false;
    }
  }
  return true;
}

namespace optim {

at::Tensor AdamW::step(LossClosure closure) {
  return step_fused<&step_adamw>(*this, closure, {});
}

at::Tensor Adam::step(LossClosure closure) {
  return step_fused<&step_adam>(*this, closure, {});
}

at::Tensor SGD::step(LossClosure closure) {
  return step_fused<&step_sgd>(*this, closure, {});
}

at::Tensor Adagrad::step(LossClosure closure) {
  return step_fused<&step_adagrad>(*this, closure, {});
}

}  // namespace optim

}  // namespace accelerate
