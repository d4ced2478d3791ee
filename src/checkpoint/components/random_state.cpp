#include "checkpoint/components/random_state.h"

#include <mutex>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>

namespace accelerate::detail {

at::Tensor generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state().clone();
}

void set_generator_state(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

AnyStateful random_states(at::Device device) {
  std::vector<at::Device> devices{at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  return {
      [devices] {
        StateDict state;
        for (const at::Device& each : devices) {
          state.set(each.str(), generator_state(each));
        }
        return state;
      },
      [devices](const StateDict& saved) {
        for (const at::Device& each : devices) {
          if (!saved.contains(each.str())) continue;
          set_generator_state(each, saved.get<at::Tensor>(each.str()));
        }
      }};
}

}  // namespace accelerate::detail
