#include "optim/optimizers/fused.h"

#include <algorithm>
#include <typeinfo>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <torch/optim/rmsprop.h>

#include <accelerate/error.h>
#include <accelerate/optimizers.h>

namespace accelerate {

namespace {

using detail::LossClosure;
using torch::optim::Optimizer;

/// Tensors processed by one kernel call. Their step counts are equal, so one
/// 0-d tensor serves all.
struct Batch {
  at::ScalarType dtype;
  at::Device device;
  std::int64_t step;
  std::vector<at::Tensor> parameters, gradients, first, second, largest;
};

/// Gives kernels, which ignore strides, dense copies of the tensors that need
/// them, and writes results back to the user's tensors.
class DenseCopies {
 public:
  // Returns `tensor` in the memory order of `parameter`.
  at::Tensor input(const at::Tensor& tensor, const at::Tensor& parameter) {
    if (tensor.strides() == parameter.strides() &&
        tensor.scalar_type() == parameter.scalar_type() && !tensor.is_neg()) {
      return tensor;
    }
    return at::empty_like(parameter).copy_(tensor);
  }
  at::Tensor output(const at::Tensor& tensor, const at::Tensor& parameter) {
    at::Tensor dense = input(tensor, parameter);
    if (!dense.is_same(tensor)) written_.emplace_back(tensor, dense);
    return dense;
  }
  // Returns a copy if the parameter is a slice of a larger tensor.
  at::Tensor parameter(const at::Tensor& tensor) {
    if (tensor.is_non_overlapping_and_dense()) return tensor;
    at::Tensor dense = tensor.contiguous();
    written_.emplace_back(tensor, dense);
    return dense;
  }
  void write_back() {
    for (const auto& [tensor, dense] : written_) tensor.copy_(dense);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

// Complex numbers as pairs of real ones; the tensor's own memory, unless it is
// a gradient whose conjugation is still due.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

class Batches {
 public:
  // `first`, `second` and `largest` are the parameter's state; undefined if the
  // optimizer does not have them.
  void add(
      const at::Tensor& parameter,
      std::int64_t step,
      const at::Tensor& first,
      const at::Tensor& second = {},
      const at::Tensor& largest = {}) {
    if (parameter.numel() == 0) return;
    const at::Tensor real = as_real(parameter);
    const at::Tensor dense = dense_.parameter(real);
    Batch& batch = batch_for(dense, step);
    batch.parameters.push_back(dense);
    batch.gradients.push_back(dense_.input(as_real(parameter.grad()), dense));
    const auto add_state = [&](std::vector<at::Tensor>& list,
                               const at::Tensor& state) {
      if (state.defined()) list.push_back(dense_.output(as_real(state), dense));
    };
    add_state(batch.first, first);
    add_state(batch.second, second);
    add_state(batch.largest, largest);
  }

  template <class Kernel>
  void run(Kernel&& kernel) {
    for (Batch& batch : batches_) {
      auto count = static_cast<float>(batch.step);
      at::Tensor step = at::from_blob(&count, {}, at::kFloat);
      if (!batch.device.is_cpu()) {
        step = at::full({}, count, step.options().device(batch.device));
      }
      kernel(batch, std::vector<at::Tensor>(batch.parameters.size(), step));
    }
    dense_.write_back();
  }

 private:
  Batch& batch_for(const at::Tensor& parameter, std::int64_t step) {
    for (Batch& batch : batches_) {
      if (batch.step == step && batch.dtype == parameter.scalar_type() &&
          batch.device == parameter.device()) {
        return batch;
      }
    }
    return batches_.emplace_back(Batch{
        parameter.scalar_type(), parameter.device(), step, {}, {}, {}, {}, {}});
  }

  std::vector<Batch> batches_;
  DenseCopies dense_;
};

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
bool needs_float_sgd(const Batch& batch) {
  return batch.device.is_cpu() && at::isReducedFloatingType(batch.dtype);
}

void run_sgd_kernel(
    at::TensorList parameters,
    at::TensorList gradients,
    at::TensorList momenta,
    const torch::optim::SGDOptions& options,
    bool is_first_step) {
  at::_fused_sgd_(
      parameters,
      gradients,
      momenta,
      options.weight_decay(),
      options.momentum(),
      options.lr(),
      options.dampening(),
      options.nesterov(),
      /*maximize=*/false,
      is_first_step);
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
    run_sgd_kernel({parameter}, {gradient}, momentum, options, is_first_step);
    batch.parameters[i].copy_(parameter);
    if (!batch.first.empty()) batch.first[i].copy_(momentum[0]);
  }
}

// The typed state of a parameter, created at its first step.
template <class State, class Make>
State& state_of(auto& states, const at::Tensor& parameter, Make&& make) {
  auto& slot = states[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = make();
  return static_cast<State&>(*slot);
}

// The states and options of Adam and AdamW have the same fields.
template <class State, class Options, class Kernel>
void adam_step(Optimizer& optimizer, Kernel&& kernel) {
  for (auto& group : optimizer.param_groups()) {
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
        state.max_exp_avg_sq(
            at::zeros_like(parameter, at::MemoryFormat::Preserve));
      }
      state.step(state.step() + 1);
      batches.add(
          parameter,
          state.step(),
          state.exp_avg(),
          state.exp_avg_sq(),
          options.amsgrad() ? state.max_exp_avg_sq() : at::Tensor());
    }
    batches.run([&](Batch& batch, const std::vector<at::Tensor>& steps) {
      const auto [beta1, beta2] = options.betas();
      kernel(
          batch.parameters,
          batch.gradients,
          batch.first,
          batch.second,
          batch.largest,
          steps,
          options.lr(),
          beta1,
          beta2,
          options.weight_decay(),
          options.eps(),
          options.amsgrad(),
          /*maximize=*/false);
    });
  }
}

void step_adamw(Optimizer& optimizer) {
  adam_step<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(
      optimizer,
      [](const auto&... arguments) { at::_fused_adamw_(arguments...); });
}

void step_adam(Optimizer& optimizer) {
  adam_step<torch::optim::AdamParamState, torch::optim::AdamOptions>(
      optimizer,
      [](const auto&... arguments) { at::_fused_adam_(arguments...); });
}

void step_sgd(Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
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
      if (is_first)
        state.momentum_buffer(
            at::empty_like(parameter, at::MemoryFormat::Preserve));
      batches.add(parameter, is_first ? 0 : 1, state.momentum_buffer());
    }
    batches.run([&](Batch& batch, const std::vector<at::Tensor>&) {
      const bool is_first_step = batch.step == 0;
      if (needs_float_sgd(batch)) {
        run_float_sgd(batch, options, is_first_step);
      } else {
        run_sgd_kernel(
            batch.parameters,
            batch.gradients,
            batch.first,
            options,
            is_first_step);
      }
    });
  }
}

void step_adagrad(Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
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
        state.sum(state.sum().to(parameter.options()));
      }
      // The constructor left the imaginary parts at 0.
      if (state.step() == 0 && parameter.is_complex())
        as_real(state.sum()).fill_(options.initial_accumulator_value());
      state.step(state.step() + 1);
      batches.add(parameter, state.step(), state.sum());
    }
    batches.run([&](Batch& batch, const std::vector<at::Tensor>& steps) {
      at::_fused_adagrad_(
          batch.parameters,
          batch.gradients,
          batch.first,
          steps,
          options.lr(),
          options.lr_decay(),
          options.weight_decay(),
          options.eps(),
          /*maximize=*/false);
    });
  }
}

// LibTorch has no fused kernel for it, but some that take lists.
void run_rmsprop(
    const Batch& batch,
    const torch::optim::RMSpropOptions& options) {
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
    at::_foreach_add_(batch.parameters, batch.second, -options.lr());
  } else {
    at::_foreach_addcdiv_(batch.parameters, gradients, divisors, -options.lr());
  }
}

void step_rmsprop(Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
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
      if (options.momentum() > 0 && !state.momentum_buffer().defined())
        state.momentum_buffer(zeros());
      if (options.centered() && !state.grad_avg().defined())
        state.grad_avg(zeros());
      state.step(state.step() + 1);
      batches.add(
          parameter,
          1,
          state.square_avg(),
          options.momentum() > 0 ? state.momentum_buffer() : at::Tensor(),
          options.centered() ? state.grad_avg() : at::Tensor());
    }
    batches.run([&](const Batch& batch, const std::vector<at::Tensor>&) {
      run_rmsprop(batch, options);
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

template <void (*Step)(Optimizer&)>
at::Tensor step_fused(Optimizer& optimizer, const LossClosure& closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = run_closure(closure);
  Step(optimizer);
  return loss;
}

template <void (*Step)(Optimizer&)>
at::Tensor step_like_libtorch(
    Optimizer& optimizer,
    const LossClosure& closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = run_closure(closure);
  if (has_unusual_tensors(optimizer)) {
    optimizer.step();
  } else {
    Step(optimizer);
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
  return nullptr;
}

namespace optim {

at::Tensor AdamW::step(LossClosure closure) {
  return step_fused<&step_adamw>(*this, closure);
}

at::Tensor Adam::step(LossClosure closure) {
  return step_fused<&step_adam>(*this, closure);
}

at::Tensor SGD::step(LossClosure closure) {
  return step_fused<&step_sgd>(*this, closure);
}

at::Tensor Adagrad::step(LossClosure closure) {
  return step_fused<&step_adagrad>(*this, closure);
}

}  // namespace optim

}  // namespace accelerate
