#include <functional>
#include <map>
#include <memory>
#include <random>

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include <accelerate/profiler.h>

#include "track/profiler/device_recorder.h"
#include "track/profiler/recorded_cycle.h"

namespace accelerate::device_time_test {

using detail::DeviceActivity;
using detail::DeviceEvent;
using detail::EventKind;
using detail::EventNode;
using detail::RecordedCycle;
using detail::RecordedEvent;
using detail::StepPart;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = DeviceActivity::Kind;

constexpr detail::NativeThread kMain{.pthread = 70, .system = 7};
constexpr detail::NativeThread kBackward{.pthread = 80, .system = 8};

RecordedEvent op(
    const std::string& name,
    std::int64_t begin,
    std::int64_t end,
    const detail::NativeThread& native = kMain) {
  return {
      .name = name,
      .thread = native.system,
      .native = native,
      .begin_ns = begin,
      .end_ns = end};
}

RecordedEvent part(StepPart which, std::int64_t begin, std::int64_t end) {
  RecordedEvent event = op("part", begin, end);
  event.kind = EventKind::part;
  event.part = which;
  return event;
}

DeviceEvent work(
    DeviceWork kind,
    std::int64_t stream,
    std::int64_t begin,
    std::int64_t end) {
  return {
      .name = "work",
      .work = kind,
      .stream = stream,
      .begin_ns = begin,
      .end_ns = end};
}

DeviceEvent
kernel(std::int64_t begin, std::int64_t end, std::int64_t stream = 7) {
  return work(DeviceWork::kernel, stream, begin, end);
}

DeviceEvent launched(
    DeviceEvent event,
    std::int64_t begin,
    std::int64_t end,
    std::uint32_t thread = kMain.pthread) {
  event.launch_thread = thread;
  event.launch_begin_ns = begin;
  event.launch_end_ns = end;
  return event;
}

struct Recorded {
  std::vector<RecordedEvent> events = {};
  std::vector<DeviceEvent> device = {};
  std::int64_t begin = 0;
  std::int64_t end = 1000;
  std::vector<detail::RecordedMemory> memory = {};

  [[nodiscard]] RecordedCycle cycle() const {
    RecordedCycle cycle{
        .rank = 3,
        .num_steps = 2,
        .begin_ns = begin,
        .end_ns = end,
        .events = events,
        .memory = memory,
        .device_events = device};
    cycle.nodes = nest_events(cycle.events, cycle.memory);
    attribute_device_time(cycle);
    return cycle;
  }
  [[nodiscard]] ProfileResults results() const {
    return ProfileResults(std::make_shared<const RecordedCycle>(cycle()));
  }
  [[nodiscard]] DeviceTimes times() const {
    const auto rows = results().device_times();
    EXPECT_EQ(rows.size(), 1U);
    return rows.empty() ? DeviceTimes{} : rows.front();
  }
};

DeviceTimes expected(DeviceTimes times) {
  times.rank = 3;
  times.num_steps = 2;
  if (times.total_ns == 0) times.total_ns = 1000;
  return times;
}

TEST(DeviceTimes, CountEachMomentOfTwoStreamsOnce) {
  const Recorded recorded{
      .device = {
          kernel(100, 400, 7), kernel(300, 600, 8), kernel(350, 360, 8)}};
  EXPECT_EQ(recorded.times(), expected({.compute_ns = 500, .idle_ns = 500}));
}

TEST(DeviceTimes, HideCommunicationAndCopiesBehindKernels) {
  const Recorded recorded{
      .device = {
          kernel(0, 400),
          work(DeviceWork::communication, 20, 300, 600),
          work(DeviceWork::copy, 21, 350, 700),
          work(DeviceWork::copy, 22, 650, 750)}};
  EXPECT_EQ(
      recorded.times(),
      expected(
          {.compute_ns = 400,
           .communication_ns = 200,
           .copy_ns = 150,
           .idle_ns = 250,
           .hidden_communication_ns = 100,
           .hidden_copy_ns = 50}));
}

TEST(DeviceTimes, NameTheHostThatIsSlowerThanTheDevice) {
  // The device waits for each launch: the host needs 100 ns for each, and a
  // kernel takes 20.
  Recorded recorded{.events = {part(StepPart::forward, 0, 500)}};
  for (std::int64_t begin = 100; begin <= 400; begin += 100)
    recorded.device.push_back(
        launched(kernel(begin, begin + 20), begin - 20, begin - 5));
  EXPECT_EQ(
      recorded.times(),
      expected(
          {.compute_ns = 80,
           .queued_ns = 20,
           .launch_ns = 400,
           .idle_ns = 500}));
}

TEST(DeviceTimes, CallPausesBetweenQueuedKernelsNoLaunches) {
  // All is launched at once, and the device is behind the host.
  const Recorded recorded{
      .events = {part(StepPart::forward, 0, 1000)},
      .device = {
          launched(kernel(40, 300), 10, 20),
          launched(kernel(310, 600), 20, 30),
          launched(kernel(610, 1000), 30, 40)}};
  EXPECT_EQ(
      recorded.times(),
      expected({.compute_ns = 940, .queued_ns = 40, .launch_ns = 20}));
}

TEST(DeviceTimes, TellWhatTheHostWaitedFor) {
  const Recorded recorded{
      .events =
          {op("aten::stack", 110, 150),
           part(StepPart::data, 100, 200),
           part(StepPart::communication, 450, 500),
           part(StepPart::backward, 400, 550),
           op("aten::mm", 600, 650),
           part(StepPart::checkpoint, 700, 900)},
      .device = {kernel(250, 300)}};
  EXPECT_EQ(
      recorded.times(),
      expected(
          {.compute_ns = 50,
           .ranks_ns = 50,
           .data_ns = 100,
           // The backward without its wait, and the operator.
           .launch_ns = 150,
           .idle_ns = 650}));
}

TEST(DeviceTimes, LastUntilTheDeviceHasFinished) {
  const Recorded recorded{.device = {kernel(900, 1500), kernel(-50, 10)}};
  EXPECT_EQ(
      recorded.times(),
      expected({.total_ns = 1500, .compute_ns = 610, .idle_ns = 890}));
}

TEST(DeviceTimes, HaveARowPerDevice) {
  Recorded recorded{.device = {kernel(100, 200), kernel(300, 1200)}};
  recorded.device[0].device = 1;
  const auto rows = recorded.results().device_times();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].device, 0);
  EXPECT_EQ(rows[0].compute_ns, 900);
  EXPECT_EQ(rows[1].device, 1);
  EXPECT_EQ(rows[1].compute_ns, 100);
  EXPECT_EQ(rows[1].total_ns, 1000);
  EXPECT_TRUE(Recorded{}.results().device_times().empty());
}

// A random moment counts for the first thing that covers it.
TEST(DeviceTimes, AgreeWithCountingEveryNanosecond) {
  std::mt19937 random(3);
  const auto number = [&](int below) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(below));
  };
  for (int trial = 0; trial < 200; ++trial) {
    Recorded recorded{.end = 60};
    for (int i = 0; i < 6; ++i) {
      const std::int64_t begin = number(60), launch = number(60);
      recorded.device.push_back(launched(
          work(
              static_cast<DeviceWork>(number(3)),
              number(2),
              begin,
              begin + number(12)),
          1 + std::min(launch, begin),
          1 + std::min(launch, begin) + number(3)));
    }
    for (int i = 0; i < 4; ++i) {
      const std::int64_t begin = number(60);
      recorded.events.push_back(
          number(2) == 0 ? op("op", begin, begin + number(20))
                         : part(
                               static_cast<StepPart>(number(6)),
                               begin,
                               begin + number(20)));
    }
    std::int64_t end = 60;
    for (const DeviceEvent& event : recorded.device)
      end = std::max(end, event.end_ns);
    DeviceTimes counted = expected({.total_ns = end});
    for (std::int64_t t = 0; t < end; ++t) {
      const auto runs = [&](DeviceWork kind) {
        return std::any_of(
            recorded.device.begin(), recorded.device.end(), [&](const auto& e) {
              return e.work == kind && e.begin_ns <= t && t < e.end_ns;
            });
      };
      const auto any_launch = [&](bool is_waiting) {
        return std::any_of(
            recorded.device.begin(), recorded.device.end(), [&](const auto& e) {
              return is_waiting ? e.launch_end_ns <= t && t < e.begin_ns
                                : e.launch_begin_ns <= t && t < e.launch_end_ns;
            });
      };
      const auto in = [&](auto&& is_it) {
        return std::any_of(
            recorded.events.begin(), recorded.events.end(), [&](const auto& e) {
              return is_it(e) && e.begin_ns <= t && t < e.end_ns;
            });
      };
      const auto in_part = [&](StepPart which) {
        return in([&](const RecordedEvent& e) {
          return e.kind == EventKind::part && e.part == which;
        });
      };
      if (runs(DeviceWork::kernel)) {
        ++counted.compute_ns;
        counted.hidden_communication_ns += runs(DeviceWork::communication);
        counted.hidden_copy_ns += runs(DeviceWork::copy);
      } else if (runs(DeviceWork::communication)) {
        ++counted.communication_ns;
      } else if (runs(DeviceWork::copy)) {
        ++counted.copy_ns;
      } else if (any_launch(true)) {
        ++counted.queued_ns;
      } else if (in_part(StepPart::communication)) {
        ++counted.ranks_ns;
      } else if (in_part(StepPart::data)) {
        ++counted.data_ns;
      } else if (
          any_launch(false) || in_part(StepPart::forward) ||
          in_part(StepPart::backward) || in_part(StepPart::optimizer) ||
          in([](const RecordedEvent& e) { return e.kind == EventKind::op; })) {
        ++counted.launch_ns;
      } else {
        ++counted.idle_ns;
      }
    }
    ASSERT_EQ(recorded.times(), counted) << "trial " << trial;
    ASSERT_EQ(
        counted.compute_ns + counted.communication_ns + counted.copy_ns +
            counted.queued_ns + counted.ranks_ns + counted.data_ns +
            counted.launch_ns + counted.idle_ns,
        end);
  }
}

std::map<std::string, std::pair<double, double>> device_us(
    const Recorded& recorded) {
  std::map<std::string, std::pair<double, double>> times;
  for (const OperatorAverage& row : recorded.results().key_averages())
    times[row.name] = {row.self_device_time_total_us, row.device_time_total_us};
  return times;
}

TEST(DeviceTime, BelongsToTheInnermostOperatorAndThoseAroundIt) {
  const auto times = device_us(
      {.events =
           {op("aten::addmm", 110, 150),
            op("aten::linear", 100, 200),
            op("aten::relu", 210, 230)},
       .device = {
           launched(kernel(1000, 4000), 120, 130),
           launched(kernel(4000, 4500), 140, 146),
           launched(kernel(4500, 4600), 160, 170),
           launched(kernel(5000, 7000), 215, 225),
           // Between operators: known to no row.
           launched(kernel(8000, 9000), 240, 250),
           kernel(9000, 9500)}});
  EXPECT_EQ(times.at("aten::addmm"), std::pair(3.5, 3.5));
  EXPECT_EQ(times.at("aten::linear"), std::pair(0.1, 3.6));
  EXPECT_EQ(times.at("aten::relu"), std::pair(2.0, 2.0));
}

TEST(DeviceTime, FindsTheThreadThatLaunched) {
  // While the backward runs, its caller waits in an event of its own.
  const std::vector<RecordedEvent> events{
      op("MmBackward0", 120, 180, kBackward),
      op("caller", 100, 300),
      op("aten::item", 130, 140)};
  const auto of = [&](std::uint32_t thread) {
    return device_us(
        {.events = events,
         .device = {launched(kernel(500, 600), 132, 138, thread)}});
  };
  const std::pair some(0.1, 0.1);
  EXPECT_EQ(of(kBackward.pthread).at("MmBackward0"), some);
  EXPECT_EQ(of(kBackward.system).at("MmBackward0"), some);
  EXPECT_EQ(of(kMain.pthread).at("aten::item"), some);
  // A thread without events at that time.
  const auto outside = device_us(
      {.events = events,
       .device = {launched(kernel(500, 600), 250, 260, kBackward.pthread)}});
  EXPECT_EQ(outside.at("caller"), std::pair(0.0, 0.0));
  // A name that no thread has: what began last.
  EXPECT_EQ(of(12345).at("aten::item"), some);
}

TEST(DeviceActivities, AreLinkedWithTheirLaunches) {
  const auto events = detail::device_events_of(
      {{.kind = Kind::launch,
        .name = "cudaLaunchKernel",
        .resource = -3,
        .begin_ns = 1010,
        .end_ns = 1020,
        .correlation = 5},
       {.kind = Kind::kernel,
        .name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        .device = 1,
        .resource = 20,
        .begin_ns = 1300,
        .end_ns = 1400,
        .correlation = 6},
       {.kind = Kind::kernel,
        .name = "gemm",
        .device = 1,
        .resource = 7,
        .begin_ns = 1100,
        .end_ns = 1200,
        .correlation = 5},
       {.kind = Kind::copy,
        .name = "Memcpy HtoD (Pinned -> Device)",
        .begin_ns = 1500,
        .end_ns = 1600}},
      1000);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].name, "gemm");
  EXPECT_EQ(events[0].work, DeviceWork::kernel);
  EXPECT_EQ(events[0].device, 1);
  EXPECT_EQ(events[0].stream, 7);
  EXPECT_EQ(events[0].begin_ns, 100);
  EXPECT_EQ(events[0].end_ns, 200);
  EXPECT_EQ(events[0].launch_begin_ns, 10);
  EXPECT_EQ(events[0].launch_end_ns, 20);
  // LibTorch's profiler gives the lower half of a pthread_t as a signed number.
  EXPECT_EQ(events[0].launch_thread, 0xfffffffdU);
  EXPECT_EQ(events[1].work, DeviceWork::communication);
  EXPECT_EQ(events[1].launch_begin_ns, 0);
  EXPECT_EQ(events[2].work, DeviceWork::copy);
}

TEST(KernelAverages, AreOnePerDeviceAndNameWithTheLongestFirst) {
  Recorded recorded{
      .device = {
          kernel(0, 1000),
          kernel(2000, 3500),
          work(DeviceWork::copy, 7, 0, 9000)}};
  recorded.device[0].name = recorded.device[1].name = "gemm";
  recorded.device[2].name = "Memcpy DtoH";
  const auto rows = recorded.results().kernel_averages();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].name, "Memcpy DtoH");
  EXPECT_EQ(rows[1].count, 2);
  EXPECT_EQ(rows[1].time_total_us, 2.5);
  EXPECT_EQ(
      kernel_table(rows),
      "Name         Device    Work  Time %     Time  Time avg  # of Runs\n"
      "-----------  ------  ------  ------  -------  --------  ---------\n"
      "Memcpy DtoH       0    copy  78.26%  9.000us   9.000us          1\n"
      "gemm              0  kernel  21.74%  2.500us   1.250us          2\n"
      "Device time total: 11.500us\n");
  EXPECT_THAT(kernel_table(rows, 1), Not(HasSubstr("gemm")));
  EXPECT_THAT(
      kernel_table({{.name = std::string(300, 'x'), .count = 1}}),
      HasSubstr(std::string(97, 'x') + "...  "));
}

TEST(DeviceTimesTable, SaysWhereTheStepGoes) {
  EXPECT_EQ(
      device_times_table(
          {{.rank = 1,
            .device = 0,
            .num_steps = 4,
            .total_ns = 8'000'000,
            .compute_ns = 4'000'000,
            .launch_ns = 3'000'000,
            .idle_ns = 1'000'000,
            .hidden_copy_ns = 800'000}}),
      "rank  device  steps  ms per step  compute  communication  copies  "
      "queued "
      " for ranks  for data  launch-bound   idle  (hidden communication)  "
      "(hidden copies)\n"
      "----  ------  -----  -----------  -------  -------------  ------  "
      "------ "
      " ---------  --------  ------------  -----  ----------------------  "
      "---------------\n"
      "1          0      4        2.000    50.0%           0.0%    0.0%    "
      "0.0% "
      "      0.0%      0.0%         37.5%  12.5%                    0.0%  "
      "          10.0%\n");
}

TEST(OperatorTable, HasColumnsOfTheDeviceIfItWorked) {
  OperatorAverage row{
      .name = "aten::mm", .count = 2, .self_cpu_time_total_us = 10};
  EXPECT_THAT(operator_table({row}), Not(HasSubstr("CUDA")));
  row.self_device_time_total_us = 1500;
  row.device_time_total_us = 3000;
  row.device_memory_usage = 2048;
  OperatorAverage other{.name = "aten::add", .count = 1};
  other.self_device_time_total_us = 4500;
  other.device_time_total_us = 4500;
  const std::string table = operator_table(
      {row, other}, {.sort_by = OperatorOrder::self_device_time_total});
  EXPECT_THAT(table, HasSubstr("Self CUDA  Self CUDA %  CUDA total"));
  EXPECT_THAT(table, HasSubstr("1.500ms       25.00%     3.000ms"));
  EXPECT_THAT(table, HasSubstr("2.00 KB"));
  EXPECT_THAT(table, HasSubstr("Self CUDA time total: 6.000ms\n"));
  EXPECT_LT(table.find("aten::add"), table.find("aten::mm"));
}

TEST(ChromeTrace, HasARowPerStreamAndArrowsFromOperators) {
  const Recorded recorded{
      .events = {op("aten::mm", 100, 200)},
      .device =
          {launched(kernel(2000, 3500, 7), 120, 130),
           work(DeviceWork::copy, 20, 2500, 2600)},
      .memory = {
          {.thread = kMain.system,
           .time_ns = 150,
           .bytes = 64,
           .total_allocated = 640,
           .total_reserved = 1024,
           .device_type = 1,
           .device_index = 0}}};
  const auto trace = nlohmann::json::parse(chrome_trace_of(recorded.cycle()));
  std::map<std::string, nlohmann::json> found;
  for (const auto& each : trace.at("traceEvents")) {
    EXPECT_EQ(each.at("pid"), 3);
    found
        [each.at("ph").get<std::string>() + " " + each.value("cat", "memory")] =
            each;
  }
  const auto& kernel_row = found.at("X kernel");
  EXPECT_EQ(kernel_row.at("ts"), 2.0);
  EXPECT_EQ(kernel_row.at("dur"), 1.5);
  EXPECT_EQ(kernel_row.at("args").at("stream"), 7);
  EXPECT_EQ(kernel_row.at("args").at("operator"), "aten::mm");
  EXPECT_NE(kernel_row.at("tid"), found.at("X gpu_memcpy").at("tid"));
  EXPECT_EQ(found.at("s ac2g").at("tid"), kMain.system);
  EXPECT_EQ(found.at("s ac2g").at("ts"), 0.12);
  EXPECT_EQ(found.at("f ac2g").at("tid"), kernel_row.at("tid"));
  EXPECT_EQ(found.at("f ac2g").at("ts"), 2.0);
  EXPECT_EQ(found.at("f ac2g").at("id"), found.at("s ac2g").at("id"));
  EXPECT_EQ(found.at("C memory").at("args").at("allocated"), 640);
  EXPECT_EQ(found.at("C memory").at("args").at("reserved"), 384);
  const auto& change = found.at("i cpu_instant_event").at("args");
  EXPECT_EQ(change.at("Total Reserved"), 1024);
  std::vector<std::string> rows;
  for (const auto& each : trace.at("traceEvents")) {
    if (each.at("name") == "thread_name")
      rows.push_back(each.at("args").at("name"));
  }
  EXPECT_THAT(
      rows, ElementsAre("thread 7", "cuda:0 stream 7", "cuda:0 stream 20"));
}

TEST(NestEvents, KeepsTheMemoryOfDevicesApart) {
  const auto nodes = detail::nest_events(
      {op("in", 20, 40), op("out", 0, 100)},
      {{.thread = kMain.system, .time_ns = 30, .bytes = 64},
       {.thread = kMain.system, .time_ns = 31, .bytes = 500, .device_type = 1},
       {.thread = kMain.system,
        .time_ns = 50,
        .bytes = -100,
        .device_type = 1}});
  EXPECT_EQ(nodes[0].self_memory_bytes, 64);
  EXPECT_EQ(nodes[0].self_device_memory_bytes, 500);
  EXPECT_EQ(nodes[1].memory_bytes, 64);
  EXPECT_EQ(nodes[1].device_memory_bytes, 400);
}

}  // namespace accelerate::device_time_test
