#pragma once

#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/standard_types.h>
#include <accelerate/export.h>
#include <accelerate/memory_plan.h>
#include <accelerate/world.h>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Implements plan_memory().
ACCELERATE_API MemoryPlan plan_memory(
    const World& world,
    torch::nn::Module& module,
    const std::function<at::Tensor(std::int64_t num_samples)>& loss_of,
    const MemoryPlanOptions& options);

/// The first `num_samples` along dimension 0, starting over after the last one;
/// in new memory, like a loader's batch.
ACCELERATE_API at::Tensor samples_of(
    const at::Tensor& inputs,
    std::int64_t num_samples);

/// The mean in fp32, a scalar.
ACCELERATE_API at::Tensor mean_of(const at::Tensor& output);

template <class T>
concept ExampleInputs = std::is_same_v<T, at::Tensor> || kIs<T, std::tuple>;

/// A stand-in loss for a module whose output is arbitrary. `M` is a holder or a
/// shared_ptr; the inputs are borrowed.
template <class M, ExampleInputs Inputs>
struct ForwardLoss {
  M module;
  const Inputs& inputs;

  at::Tensor operator()(std::int64_t num_samples) const {
    // A const holder gives a const module, whose forward cannot be called.
    M callee = module;
    return std::apply(
        [&](const auto&... each) {
          return mean_of(callee->forward(samples_of(each, num_samples)...));
        },
        as_tuple());
  }
  /// Sets the batch size to the inputs' number of samples unless it is given.
  [[nodiscard]] MemoryPlanOptions with_batch_size(
      MemoryPlanOptions options) const {
    if (!options.batch_size)
      options.batch_size = std::get<0>(as_tuple()).size(0);
    return options;
  }

  [[nodiscard]] auto as_tuple() const {
    if constexpr (kIs<Inputs, std::tuple>) {
      return inputs;
    } else {
      return std::tuple(inputs);
    }
  }
};

}  // namespace accelerate::detail
