#include <accelerate/empty_weights.h>

#include <torch/nn/module.h>

#include "config/environment.h"
#include "config/user_variables.h"
#include "gate/factory_scope.h"

namespace accelerate {

struct DeviceScope::Scope {
  Scope(c10::Device device, bool include_buffers)
      : factories(
            device,
            include_buffers ? detail::FactoryScope::Tensors::all
                            : detail::FactoryScope::Tensors::parameters) {}

  detail::FactoryScope factories;
};

DeviceScope::DeviceScope(c10::Device device, bool include_buffers)
    : scope_(std::make_unique<Scope>(device, include_buffers)) {}

DeviceScope::~DeviceScope() = default;

EmptyWeightsScope::EmptyWeightsScope(std::optional<bool> include_buffers)
    : scope_(
          c10::Device(c10::kMeta),
          detail::init_includes_buffers(include_buffers)) {}

namespace detail {

void move_tensors(
    const torch::nn::Module& module,
    c10::Device device,
    bool moves_buffers) {
  for (const at::Tensor& parameter : module.parameters())
    if (parameter.defined()) move_in_place(parameter, device);
  if (!moves_buffers) return;
  for (const at::Tensor& buffer : module.buffers())
    if (buffer.defined()) move_in_place(buffer, device);
}

bool init_includes_buffers(std::optional<bool> include_buffers) {
  return include_buffers ? *include_buffers
                         : init_includes_buffers(Environment::current());
}

}  // namespace detail

}  // namespace accelerate
