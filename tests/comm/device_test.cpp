// A rank's device on machines with an accelerator.
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include <ATen/DeviceAccelerator.h>

#include <accelerate/accelerate.h>

#include "base/text/text.h"
#include "comm/group/rank_device.h"
#include "config/environment.h"
#include "config/settings.h"
#include "support/expect_error.h"
#include "support/pretend_device.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace device_test {

using testing::expect_error;
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

// The device that a rank on the machine's `place` chooses by a name.
at::Device device_named(const std::string& name, int place, int num_processes) {
  const auto scope = patch_environment({{"ACCELERATE_TORCH_DEVICE", name}});
  return detail::choose_device(
      {},
      detail::launch_settings(detail::Environment::current()),
      detail::Environment::current(),
      {.index = place, .num_processes = num_processes});
}

TEST(DeviceOfARank, IsTheOneOfItsPlaceAmongThoseOfAName) {
  pretend_device();
  const std::string name = testing::pretend_device_name();
  EXPECT_EQ(device_named(name, 0, 2), pretend_device(0));
  EXPECT_EQ(device_named(name, 1, 2), pretend_device(1));
  EXPECT_EQ(device_named(name + ":0", 1, 2), pretend_device(0));
  EXPECT_EQ(device_named("cpu", 1, 2), at::Device(at::kCPU));
}

TEST(DeviceOfARank, MustBeOneThatLibTorchHas) {
  pretend_device();
  const std::string own = testing::pretend_device_name();
  for (const std::string name :
       {"cuda", "xpu", "mps", "hpu", "mtia", "npu", "mlu", "musa", "sdaa"}) {
    if (name == own) continue;
    expect_error<ConfigError>(
        [&] { device_named(name, 0, 1); },
        "[launch] the device must be one that this LibTorch has, but is \"" +
            name +
            "\" (environment variable ACCELERATE_TORCH_DEVICE); it has cpu "
            "and " +
            own);
  }
  expect_error<ConfigError>(
      [&] { device_named("xla", 0, 1); },
      "TPUs need torch_xla, which exists for Python alone");
  expect_error<ConfigError>(
      [&] { device_named(own + ":5", 0, 1); },
      "[launch] the device must be one that this process sees, " + own +
          ":0 to " + own + ":1, but is " + own +
          ":5 (environment variable ACCELERATE_TORCH_DEVICE)");
  expect_error<ConfigError>(
      [&] { World({.rank = 0, .size = 1, .device = at::Device(at::kXPU, 0)}); },
      "but is \"xpu:0\" (WorldOptions::device); it has cpu and " + own);
}

TEST(DeviceOfARank, IsSharedOnlyOnRequest) {
  pretend_device();
  testing::run_on_ranks(3, [](WorldOptions options) {
    options.device = std::nullopt;
    expect_error<ConfigError>(
        [&] { World{options}; },
        "[launch] each rank must have a device of its own, but 3 ranks of this "
        "machine would share 2 (" +
            testing::pretend_device_name() +
            "); start fewer, add --cpu, or, for tests, --share_devices");
  });
  for (const auto& variable :
       {std::pair("ACCELERATE_CPP_SHARE_DEVICES", "true"),
        // A scheduler may show each rank a device of its own.
        std::pair("CUDA_VISIBLE_DEVICES", "0")}) {
    const auto scope = patch_environment({{variable.first, variable.second}});
    testing::run_on_ranks(3, [](WorldOptions options) {
      options.device = std::nullopt;
      EXPECT_EQ(World(options).device(), pretend_device(*options.rank % 2));
    });
  }
}

TEST(NcclVariables, AreExplainedAndLeftToNccl) {
  const auto scope = patch_environment(
      {{"NCCL_SOCKET_IFNAME", "eth0"},
       {"ACCELERATE_NCCL_LIBRARY", "/opt/libnccl.so.2"}});
  const Accelerator accelerator(
      {.world = {.rank = 0, .size = 1, .device = at::kCPU}});
  EXPECT_THAT(
      accelerator.explain_settings(),
      ::testing::AllOf(
          ::testing::HasSubstr(
              "NCCL_SOCKET_IFNAME = eth0  (environment variable; NCCL reads it "
              "itself)\n"),
          ::testing::HasSubstr(
              "ACCELERATE_NCCL_LIBRARY = /opt/libnccl.so.2  (environment "
              "variable)\n")));
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "eth0");
}

// Run under several vendors' names: see CMakeLists.txt.
TEST(VendorsDevice, HasItsTypeAndTalksThroughHostMemory) {
  pretend_device();
  const std::string name = testing::pretend_device_name();
  std::string type = "MULTI_GPU";
  for (const std::string vendors : {"npu", "mlu", "musa"})
    if (name == vendors) type = "MULTI_" + detail::to_upper(name);
  const auto scope = patch_environment({{"ACCELERATE_TORCH_DEVICE", name}});
  testing::run_on_ranks(2, [&](WorldOptions options) {
    options.device = std::nullopt;
    const Accelerator accelerator({.world = options});
    const AcceleratorState state = accelerator.state();
    EXPECT_EQ(state.device.str(), name + ":" + std::to_string(*options.rank));
    EXPECT_EQ(name_of(state.distributed_type), type);
    EXPECT_TRUE(state.multi_device());
    EXPECT_EQ(state.backend.find("nccl"), std::string::npos);
    const at::Tensor sum =
        at::full({3}, *options.rank + 1.0).to(accelerator.device());
    accelerator.world().group().all_reduce(sum);
    EXPECT_TRUE(at::equal(sum.cpu(), at::full({3}, 3.0)));
  });
}

}  // namespace device_test
}  // namespace accelerate
