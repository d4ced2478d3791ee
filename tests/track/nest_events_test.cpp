#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::nest_events_test {

using detail::EventNode;
using detail::nest_events;
using detail::RecordedCycle;
using detail::RecordedEvent;
using detail::RecordedMemory;
using ::testing::ElementsAre;
using ::testing::Field;

RecordedEvent event(
    const std::string& name,
    std::int64_t begin,
    std::int64_t end,
    std::uint64_t thread = 1) {
  return {.name = name, .thread = thread, .begin_ns = begin, .end_ns = end};
}

RecordedMemory
change(std::int64_t time, std::int64_t bytes, std::uint64_t thread = 1) {
  return {.thread = thread, .time_ns = time, .bytes = bytes};
}

// "self/parent" of each event, "-" for no parent.
std::string shape(const std::vector<RecordedEvent>& events) {
  std::string text;
  for (const EventNode& node : nest_events(events, {})) {
    text += (text.empty() ? "" : " ") + std::to_string(node.self_ns) + "/" +
        (node.parent == EventNode::kNone ? "-" : events[node.parent].name);
  }
  return text;
}

// Events are listed in the order of their ends, as they are recorded.

TEST(NestEvents, LeavesOutTheTimeOfWhatIsInside) {
  EXPECT_EQ(
      shape(
          {event("c", 30, 40),
           event("b", 20, 60),
           event("d", 70, 80),
           event("a", 0, 100),
           event("e", 100, 110)}),
      "10/b 30/a 10/a 50/- 10/-");
}

TEST(NestEvents, TakesTheLaterRecordForTheOuterOneOfTwoWithTheSameTimes) {
  EXPECT_EQ(shape({event("in", 5, 9), event("out", 5, 9)}), "4/out 0/-");
}

TEST(NestEvents, KeepsThreadsApart) {
  EXPECT_EQ(
      shape({event("b", 10, 20, 2), event("a", 0, 100, 1)}), "10/- 100/-");
}

TEST(NestEvents, LetsAnAsynchronousEventStandAlone) {
  RecordedEvent message = event("message", 10, 200);
  message.is_async = true;
  EXPECT_EQ(
      shape({event("op", 20, 30), event("a", 0, 100), message}),
      "10/a 90/- 190/-");
}

TEST(NestEvents, GivesMemoryToTheInnermostEventAndItsParents) {
  const auto nodes = nest_events(
      {event("b", 20, 40), event("a", 0, 100), event("c", 20, 40, 2)},
      {change(30, 64),
       change(50, 100),
       change(90, -32),
       change(200, 7),
       change(25, 1000, 2)});
  EXPECT_THAT(
      nodes,
      ElementsAre(
          Field(&EventNode::self_memory_bytes, 64),
          Field(&EventNode::self_memory_bytes, 68),
          Field(&EventNode::self_memory_bytes, 1000)));
  EXPECT_THAT(
      nodes,
      ElementsAre(
          Field(&EventNode::memory_bytes, 64),
          Field(&EventNode::memory_bytes, 132),
          Field(&EventNode::memory_bytes, 1000)));
}

TEST(NestEvents, HandsAModuleDownToTheEventsInside) {
  RecordedEvent linear = event("linear", 10, 50);
  linear.module = "Net.fc1";
  RecordedEvent forward = event("forward", 0, 100);
  forward.module = "Net";
  EXPECT_THAT(
      nest_events(
          {event("addmm", 20, 30), linear, event("relu", 60, 70), forward}, {}),
      ElementsAre(
          Field(&EventNode::module, "Net.fc1"),
          Field(&EventNode::module, "Net.fc1"),
          Field(&EventNode::module, "Net"),
          Field(&EventNode::module, "Net")));
}

TEST(ChromeTrace, HoldsEveryEventWithItsTimesAndFacts) {
  RecordedCycle cycle{.rank = 2, .world_size = 4, .begin_ns = 1000};
  cycle.clock = {.wall_base_ns = 5000, .offset_ns = -30, .offset_error_ns = 7};
  RecordedEvent op = event("aten::mm", 2000, 3500);
  op.flops = 48;
  op.input_shapes = "[[2, 3], [3, 4]]";
  op.sequence = 9;
  RecordedEvent message = event("gloo:all_reduce", 2500, 9000);
  message.is_async = true;
  RecordedEvent odd = event("\xff", 4000, 4001);
  cycle.events = {op, message, odd};
  cycle.memory = {change(2200, -16)};
  cycle.nodes = nest_events(cycle.events, cycle.memory);
  const auto trace = nlohmann::json::parse(chrome_trace_of(cycle));
  EXPECT_EQ(trace.at("baseTimeNanoseconds"), 6000);
  EXPECT_EQ(trace.at("clockOffsetNanoseconds"), -30);
  EXPECT_EQ(trace.at("clockOffsetErrorNanoseconds"), 7);
  EXPECT_EQ(trace.at("distributedInfo").at("rank"), 2);
  EXPECT_EQ(trace.at("distributedInfo").at("world_size"), 4);
  std::map<std::string, nlohmann::json> found;
  for (const auto& each : trace.at("traceEvents")) {
    EXPECT_EQ(each.at("pid"), 2);
    found
        [each.at("ph").get<std::string>() + " " +
         each.at("name").get<std::string>()] = each;
  }
  const auto& mm = found.at("X aten::mm");
  EXPECT_EQ(mm.at("ts"), 1.0);
  EXPECT_EQ(mm.at("dur"), 1.5);
  EXPECT_EQ(mm.at("args").at("Flops"), 48);
  EXPECT_EQ(mm.at("args").at("Input Dims"), "[[2, 3], [3, 4]]");
  EXPECT_EQ(mm.at("args").at("Sequence number"), 9);
  EXPECT_EQ(found.at("b gloo:all_reduce").at("ts"), 1.5);
  EXPECT_EQ(found.at("e gloo:all_reduce").at("ts"), 8.0);
  EXPECT_EQ(found.at("i [memory]").at("args").at("Bytes"), -16);
  EXPECT_EQ(found.at("M process_name").at("args").at("name"), "rank 2");
}

}  // namespace accelerate::nest_events_test
