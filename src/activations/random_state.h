#pragma once

#include <cstddef>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace accelerate::detail {

/// Returns the generator that the operator about to run on `stack` draws from.
inline at::Generator generator_of(
    const torch::jit::Stack& stack,
    std::size_t num_arguments) {
  at::Device device = at::kCPU;
  for (std::size_t i = stack.size(); i > stack.size() - num_arguments; --i) {
    const c10::IValue& value = stack[i - 1];
    if (value.isGenerator()) return value.toGenerator();
    if (value.isDevice()) device = value.toDevice();
    if (value.isTensor() && value.toTensor().defined())
      device = value.toTensor().device();
  }
  return at::globalContext().defaultGenerator(device);
}

inline at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

/// Replays random numbers from a saved state; restores the generator's own
/// state when destroyed.
class RandomStateScope {
 public:
  RandomStateScope(const at::Generator& generator, const at::Tensor& state)
      : generator_(generator) {
    if (!generator_.defined()) return;
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_state(state);
  }
  ~RandomStateScope() {
    if (!generator_.defined()) return;
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(before_);
  }
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

}  // namespace accelerate::detail
