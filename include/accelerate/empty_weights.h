#pragma once

#include <optional>
#include <utility>

#include <c10/core/Device.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

namespace torch::nn {
class Module;
}

/// Models that are described before they have memory, or made on the device
/// where they are needed.
namespace accelerate {

/// While it lives, parameters of modules that this thread makes go to `device`
/// instead of the CPU. Scopes nest; a tensor first goes where the outer one
/// says.
///
/// `include_buffers`: every tensor that a factory function (torch::empty,
/// torch::randn ...) would make on the CPU is made on the device instead,
/// except tensors of given values (torch::tensor), which stay and can be read,
/// as in Accelerate; init_on_device() moves those that become buffers. Without
/// it, tensors are made as usual, and a parameter moves once its module has
/// registered it, one at a time, by the time the next tensor is made or an
/// operator takes it. Buffers keep their values. A parameter registered without
/// requires_grad looks like a buffer, and stays; init_on_device() moves those
/// as well.
class ACCELERATE_API DeviceScope {
 public:
  DeviceScope(c10::Device device, bool include_buffers);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  struct Scope;
  detail::OwnedPtr<Scope> scope_;
};

/// A DeviceScope of the meta device, where tensors have sizes and a dtype but
/// no memory, so that a model of any size is made instantly. Values come later:
/// use load_checkpoint_and_dispatch() or load_model(), or prepare() it as a
/// sharded model and load into that, so that each rank gets only its shards.
///
/// With `include_buffers`, by default the value of
/// ACCELERATE_INIT_INCLUDE_BUFFERS, buffers are empty as well; throws
/// ConfigError if the variable is not a boolean.
///
///     Net net = [&] { accelerate::EmptyWeightsScope scope; return Net(); }();
class ACCELERATE_API EmptyWeightsScope {
 public:
  explicit EmptyWeightsScope(
      std::optional<bool> include_buffers = std::nullopt);

 private:
  DeviceScope scope_;
};

namespace detail {

/// Moves all parameters, and buffers if asked, to the device in place, so that
/// every handle sees it.
ACCELERATE_API void move_tensors(
    const torch::nn::Module& module,
    c10::Device device,
    bool moves_buffers);
ACCELERATE_API bool init_includes_buffers(std::optional<bool> include_buffers);

}  // namespace detail

/// Calls `function` inside a DeviceScope, moves the parameters of the returned
/// module, and with `include_buffers` its buffers, that are not on the device
/// yet, and returns the module.
template <class Function>
auto init_on_device(
    c10::Device device,
    Function&& function,
    std::optional<bool> include_buffers = std::nullopt) {
  const bool moves_buffers = detail::init_includes_buffers(include_buffers);
  auto made = [&] {
    const DeviceScope scope(device, moves_buffers);
    return std::forward<Function>(function)();
  }();
  if constexpr (requires { made->named_parameters(); }) {
    detail::move_tensors(*made, device, moves_buffers);
  }
  return made;
}

/// init_on_device() for the meta device; Accelerate's init_empty_weights.
///
///     Net net = accelerate::init_empty_weights([] { return Net(); });
template <class Function>
auto init_empty_weights(
    Function&& function,
    std::optional<bool> include_buffers = std::nullopt) {
  return init_on_device(
      c10::Device(c10::kMeta),
      std::forward<Function>(function),
      include_buffers);
}

}  // namespace accelerate
