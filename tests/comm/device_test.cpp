// A rank's device on machines with an accelerator.
#include <map>
#include <optional>
#include <string>
#include <thread>

#include <ATen/DeviceAccelerator.h>

#include <accelerate/accelerate.h>

#include "support/pretend_device.h"

namespace accelerate {
namespace device_test {

using testing::pretend_device;

TEST(DeviceOfARank, IsThatOfTheOptionsThenOfTheLauncher) {
  struct Case {
    std::map<std::string, std::string> launcher;
    std::optional<at::Device> device;
    std::optional<bool> cpu;
    at::Device expected;
  };
  const at::Device first = pretend_device(0), second = pretend_device(1);
  const std::map<std::string, std::string> keeps_to_cpu{
      {"ACCELERATE_USE_CPU", "true"}};
  const auto names = [](const at::Device& device) {
    return std::map<std::string, std::string>{
        {"ACCELERATE_TORCH_DEVICE", device.str()}};
  };
  for (const Case& each :
       {Case{{}, {}, {}, first},
        Case{{}, {}, true, at::kCPU},
        Case{{}, second, {}, second},
        Case{{}, second, true, second},
        Case{keeps_to_cpu, {}, {}, at::kCPU},
        Case{keeps_to_cpu, {}, false, first},
        Case{keeps_to_cpu, second, {}, second},
        Case{names(second), {}, {}, second},
        Case{names(second), {}, true, at::kCPU},
        Case{names(second), {}, false, second},
        Case{names(at::kCPU), {}, false, first}}) {
    const auto scope = patch_environment(each.launcher);
    const WorldOptions world{
        .rank = 0, .size = 1, .device = each.device, .cpu = each.cpu};
    EXPECT_EQ(World(world).device(), each.expected);
    const Accelerator accelerator({.world = world});
    EXPECT_EQ(accelerator.device(), each.expected);
    if (each.cpu && !each.device) {
      EXPECT_THAT(
          accelerator.explain_settings(),
          ::testing::HasSubstr(
              *each.cpu ? "use_cpu = true  (code)\n"
                        : "use_cpu = false  (code)\n"));
    }
  }
}

TEST(DeviceOfARank, IsCurrentInItsThread) {
  const auto current_of = [](at::Device device) {
    at::DeviceIndex current = -1;
    std::thread([&] {
      const World world(WorldOptions{.rank = 0, .size = 1, .device = device});
      current = at::accelerator::getDeviceIndex();
    }).join();
    return current;
  };
  EXPECT_EQ(current_of(pretend_device(1)), 1);
  EXPECT_EQ(current_of(pretend_device(0)), 0);
  EXPECT_EQ(current_of(at::kCPU), 0);
}

}  // namespace device_test
}  // namespace accelerate
