#pragma once

// Layers that sleep for known times, so that ranks that share few processors
// are as fast as ranks with one each.

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "report.h"

namespace accelerate::benchmarks {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Seconds spent in layers, forward and backward.
struct Slept {
  double forward = 0;
  double backward = 0;
};
/// The time that sleeping layers have slept.
inline Slept slept;
/// The time spent in sleeping layers, including what they compute.
inline Slept in_layers;

inline void sleep(double seconds, double& sum) {
  if (seconds <= 0) return;
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  sum += seconds_since(begin);
}

struct Sleeps : torch::autograd::Function<Sleeps> {
  /// The time up to which `in_layers.backward` has counted.
  inline static Clock::time_point backward_end;

  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      double seconds) {
    context->saved_data["seconds"] = seconds;
    sleep(seconds, slept.forward);
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto begin = Clock::now();
    sleep(2 * context->saved_data.at("seconds").toDouble(), slept.backward);
    backward_end = Clock::now();
    in_layers.backward +=
        std::chrono::duration<double>(backward_end - begin).count();
    return {gradients[0], at::Tensor()};
  }
};

/// The beginning of a layer: its backward ends the layer's backward.
struct LayerBegins : torch::autograd::Function<LayerBegins> {
  static at::Tensor forward(
      torch::autograd::AutogradContext*,
      const at::Tensor& x) {
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      const torch::autograd::variable_list& gradients) {
    in_layers.backward += seconds_since(Sleeps::backward_end);
    return gradients;
  }
};

/// A linear layer that sleeps for a given time.
struct SleepingImpl : torch::nn::Module {
  SleepingImpl(std::int64_t width, double time)
      : linear(register_module("linear", torch::nn::Linear(width, width))),
        seconds(time) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto begin = Clock::now();
    const at::Tensor y = Sleeps::apply(linear(LayerBegins::apply(x)), seconds);
    in_layers.forward += seconds_since(begin);
    return y;
  }
  torch::nn::Linear linear;
  double seconds;
};
TORCH_MODULE(Sleeping);

inline double mean_over(const World& world, double value) {
  const at::Tensor sum = torch::full({}, value, torch::kDouble);
  world.group().all_reduce(sum);
  return sum.item<double>() / world.size();
}

/// Runs `step` on all ranks and returns the median of the slowest rank's times.
/// Afterwards, `slept` and `in_layers` cover `num_steps` steps.
inline double
time_of(const World& world, int num_steps, const std::function<void()>& step) {
  step();
  std::vector<double> times;
  slept = in_layers = {};
  for (int i = 0; i < num_steps; ++i) {
    world.wait_for_everyone();
    const auto begin = Clock::now();
    step();
    const at::Tensor most =
        torch::full({}, seconds_since(begin), torch::kDouble);
    world.group().all_reduce(most, ReduceOp::max);
    times.push_back(most.item<double>());
  }
  return median(times);
}

}  // namespace accelerate::benchmarks
