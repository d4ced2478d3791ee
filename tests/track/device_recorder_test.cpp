// LibTorch's profiler beside ours, on machines without a device as well.
#include "track/profiler/device_recorder.h"

#include <set>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "track/profiler/operator_recorder.h"
#include "track/profiler/profile_session.h"

namespace accelerate::device_recorder_test {

using detail::DeviceRecorder;
using detail::OperatorRecorder;
using detail::ParameterOwners;
using detail::ProfileRequest;
using detail::ProfileSession;
using detail::RecordedEvent;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DeviceRecorder, LeavesOperatorsToTheirRecorder) {
  const auto devices = DeviceRecorder::make();
  ASSERT_NE(devices, nullptr);
  devices->prepare();
  devices->start(at::kCPU);
  const auto operators = std::make_shared<OperatorRecorder>(
      ProfileOptions(), std::make_shared<const ParameterOwners>());
  operators->start();
  const at::Tensor weight = torch::ones({3, 3}, at::requires_grad());
  at::ones({2, 3}).mm(weight).sum().backward();
  operators->stop();
  const auto cycle = operators->take();
  std::set<std::string> names;
  for (const RecordedEvent& event : cycle.events) names.insert(event.name);
  EXPECT_TRUE(names.contains("aten::mm"));
  EXPECT_TRUE(names.contains("MmBackward0"));
  // Only launches, and there was none.
  EXPECT_TRUE(devices->stop(at::kCPU, 0).empty());
  EXPECT_EQ(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE),
      nullptr);
}

TEST(DeviceRecorder, IsOneInAProcess) {
  auto one = DeviceRecorder::make();
  EXPECT_EQ(DeviceRecorder::make(), nullptr);
  one->prepare();
  one->start(at::kCPU);
  // Ends the recording as well.
  one.reset();
  EXPECT_EQ(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE),
      nullptr);
  one = DeviceRecorder::make();
  ASSERT_NE(one, nullptr);
  one->prepare();
  one->start(at::kCPU);
  EXPECT_TRUE(one->stop(at::kCPU, 0).empty());
}

// LibTorch would take what was pushed later for its own profiler.
TEST(DeviceRecorder, EndsNoOtherProfiler) {
  const auto devices = DeviceRecorder::make();
  devices->prepare();
  devices->start(at::kCPU);
  const auto operators = std::make_shared<OperatorRecorder>(
      ProfileOptions(), std::make_shared<const ParameterOwners>());
  operators->start();
  EXPECT_TRUE(devices->stop(at::kCPU, 0).empty());
  EXPECT_EQ(OperatorRecorder::of_this_thread(), operators.get());
  operators->stop();
}

// A session that believes there is a device.
ProfileRequest request_with_device(
    const ProfileOptions& options,
    std::vector<std::string>* warnings = nullptr) {
  WorldOptions world{.rank = 0, .size = 1, .device = at::kCPU};
  if (warnings != nullptr) {
    world.logger = Logger(
        [warnings](const LogRecord& record) {
          warnings->emplace_back(record.message);
        },
        LogLevel::warning);
  }
  return {
      .options = options,
      .world = World(world),
      .slot = std::make_shared<detail::StepSlot>(),
      .report = [](const std::vector<StepTimes>&) {},
      .has_device = true};
}

bool records_this_thread() {
  return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) !=
      nullptr;
}

TEST(ProfileSession, RecordsOperatorsAndDevicesInEachCycle) {
  std::vector<std::vector<std::int64_t>> steps;
  ProfileSession session(request_with_device(
      {.schedule_option =
           ProfileSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 2},
       .on_trace_ready = [&](const ProfileResults& results) {
         steps.push_back(results.steps());
         // Two recorded steps of one operator each.
         EXPECT_EQ(results.key_averages().front().name, "aten::exp");
         EXPECT_EQ(results.key_averages().front().count, 2);
         EXPECT_TRUE(results.device_times().empty());
       }}));
  const at::Tensor x = at::ones({2});
  for (int i = 0; i < 8; ++i) {
    at::Tensor y = at::exp(x);
    session.step();
  }
  session.end();
  EXPECT_EQ(steps, (std::vector<std::vector<std::int64_t>>{{2, 3}, {6, 7}}));
  EXPECT_EQ(session.cycle()->num_steps, 2);
  EXPECT_FALSE(records_this_thread());
}

TEST(ProfileSession, WarnsIfAnotherOneRecordsTheDevice) {
  std::vector<std::string> warnings;
  {
    const auto other = DeviceRecorder::make();
    ProfileSession session(request_with_device({}, &warnings));
    at::Tensor y = at::exp(at::ones({2}));
    session.end();
    EXPECT_FALSE(session.cycle()->events.empty());
  }
  EXPECT_THAT(
      warnings, ElementsAre(HasSubstr("another profile of this process does")));
  ProfileSession session(request_with_device({}, &warnings));
  session.end();
  EXPECT_EQ(warnings.size(), 1U);
}

TEST(ProfileSession, LeavesNothingBehindWhenItIsDropped) {
  {
    const ProfileSession dropped(request_with_device({}));
    EXPECT_TRUE(records_this_thread());
  }
  EXPECT_FALSE(records_this_thread());
  EXPECT_NE(DeviceRecorder::make(), nullptr);
}

TEST(OperatorRecorder, RecordsNoOperatorsIfOnlyDevicesAreAskedFor) {
  const auto operators = std::make_shared<OperatorRecorder>(
      ProfileOptions{
          .activities = std::vector{ProfilerActivity::cuda},
          .profile_memory = true},
      std::make_shared<const ParameterOwners>());
  operators->start();
  (void)at::ones({100}).exp();
  operators->add_here({.name = "step", .begin_ns = detail::profile_now()});
  operators->stop();
  const auto cycle = operators->take();
  ASSERT_EQ(cycle.events.size(), 1U);
  EXPECT_EQ(cycle.events.front().name, "step");
  EXPECT_FALSE(cycle.memory.empty());
}

}  // namespace accelerate::device_recorder_test
