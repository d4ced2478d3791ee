// Profiles on a CUDA device: kernels and copies with the operators that
// launched them, and where the device's time goes.
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <accelerate/accelerate.h>

#include "support/gpu_device.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace profile_gpu_test {

namespace nn = torch::nn;
using torch::Tensor;

using ProfileOnGpu = testing::OnGpu;

constexpr int kSteps = 3;

// Steps of a net whose kernels take far longer than their launches.
ProfileResults profile_steps(at::Device device, const ProfileOptions& options) {
  const Accelerator accelerator(
      {.world = {.rank = 0, .size = 1, .device = device}});
  nn::Sequential net(
      nn::Linear(2048, 2048), nn::ReLU(), nn::Linear(2048, 2048));
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto profile = accelerator.profile(options);
  const Tensor host = torch::randn({4096, 2048});
  for (int i = 0; i < kSteps + 1; ++i) {
    optimizer.zero_grad();
    const Tensor x = host.to(device);
    accelerator.backward(model(x).square().mean());
    optimizer.step();
    profile.step();
  }
  profile.stop();
  return profile.results();
}

std::map<std::string, OperatorAverage> rows_of(const ProfileResults& results) {
  std::map<std::string, OperatorAverage> rows;
  for (const OperatorAverage& row : results.key_averages())
    rows[row.name] = row;
  return rows;
}

TEST_F(ProfileOnGpu, OperatorsHaveTheTimeOfTheirKernels) {
  const ProfileResults results = profile_steps(
      device_,
      {.schedule_option = ProfileSchedule{.warmup = 1, .active = kSteps}});
  const auto kernels = results.kernel_averages();
  double all_us = 0, copies_us = 0;
  for (const KernelAverage& kernel : kernels) {
    EXPECT_EQ(kernel.device, 0);
    EXPECT_GT(kernel.time_total_us, 0) << kernel.name;
    all_us += kernel.time_total_us;
    if (kernel.work == DeviceWork::copy) copies_us += kernel.time_total_us;
  }
  const auto rows = rows_of(results);
  // Two products forward, three backward (none for the input).
  ASSERT_TRUE(rows.contains("aten::mm")) << kernel_table(kernels);
  EXPECT_GT(rows.at("aten::mm").self_device_time_total_us, 0);
  EXPECT_GE(
      rows.at("AddmmBackward0").device_time_total_us,
      rows.at("aten::mm").self_device_time_total_us * 0.99);
  EXPECT_GT(rows.at("aten::copy_").self_device_time_total_us, 0);
  EXPECT_GT(copies_us, 0);
  // Each kernel belongs to an operator.
  double attributed_us = 0;
  for (const auto& [name, row] : rows)
    attributed_us += row.self_device_time_total_us;
  EXPECT_NEAR(attributed_us, all_us, 0.02 * all_us)
      << operator_table(
             results.key_averages(),
             {.sort_by = OperatorOrder::self_device_time_total})
      << kernel_table(kernels);
}

TEST_F(ProfileOnGpu, TimesOfTheDeviceAddUp) {
  const ProfileResults results = profile_steps(
      device_,
      {.schedule_option = ProfileSchedule{.warmup = 1, .active = kSteps}});
  const auto all = results.device_times();
  ASSERT_EQ(all.size(), 1U);
  const DeviceTimes& times = all.front();
  EXPECT_EQ(times.num_steps, kSteps);
  EXPECT_EQ(
      times.total_ns,
      times.compute_ns + times.communication_ns + times.copy_ns +
          times.queued_ns + times.ranks_ns + times.data_ns + times.launch_ns +
          times.idle_ns);
  EXPECT_GT(times.compute_ns, 0);
  EXPECT_GT(times.copy_ns + times.hidden_copy_ns, 0);
  EXPECT_EQ(times.communication_ns, 0);
  double busy_us = 0;
  for (const KernelAverage& kernel : results.kernel_averages())
    busy_us += kernel.time_total_us;
  EXPECT_LE(
      static_cast<double>(times.compute_ns + times.copy_ns) / 1000,
      busy_us * 1.001);
}

TEST_F(ProfileOnGpu, TracesHaveARowPerStream) {
  const testing::TemporaryDirectory directory;
  static_cast<void>(profile_steps(
      device_,
      {.schedule_option = ProfileSchedule{.warmup = 1, .active = kSteps},
       .profile_memory = true,
       .output_trace_dir = directory.path().string()}));
  std::ifstream stream(directory.path() / "profile_0.json");
  const auto trace = nlohmann::json::parse(stream);
  std::map<std::string, int> counts;
  std::set<std::string> rows;
  std::int64_t allocated = 0;
  for (const auto& event : trace.at("traceEvents")) {
    ++counts[event.value("cat", "")];
    if (event.at("name") == "thread_name")
      rows.insert(event.at("args").at("name"));
    if (event.at("ph") == "C")
      allocated = event.at("args").at("allocated").get<std::int64_t>();
  }
  EXPECT_GE(counts["kernel"], 5 * kSteps);
  EXPECT_GE(counts["gpu_memcpy"], kSteps);
  EXPECT_GT(counts["ac2g"], 0);
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const auto& row) {
    return row.starts_with("cuda:0 stream ");
  }));
  EXPECT_GT(allocated, 2 * 2048 * 2048 * 4);
}

TEST_F(ProfileOnGpu, DevicesAloneAndOperatorsAlone) {
  const ProfileResults kernels = profile_steps(
      device_, {.activities = std::vector{ProfilerActivity::cuda}});
  EXPECT_FALSE(kernels.kernel_averages().empty());
  EXPECT_FALSE(rows_of(kernels).contains("aten::mm"));
  const ProfileResults operators = profile_steps(
      device_, {.activities = std::vector{ProfilerActivity::cpu}});
  EXPECT_TRUE(operators.kernel_averages().empty());
  EXPECT_EQ(rows_of(operators).at("aten::mm").device_time_total_us, 0);
}

}  // namespace profile_gpu_test
}  // namespace accelerate
