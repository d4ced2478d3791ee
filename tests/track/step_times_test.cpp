#include <gmock/gmock.h>

#include <thread>

#include <nlohmann/json.hpp>

#include <accelerate/profiler.h>

#include "track/profiler/step_recorder.h"

namespace accelerate::step_times_test {

using detail::StepPart;
using detail::StepPartScope;
using detail::StepRecorder;
using detail::StepSlot;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;

std::int64_t sum_of_parts(const StepTimes& times) {
  return times.data_ns + times.forward_ns + times.backward_ns +
      times.optimizer_ns + times.communication_ns + times.other_ns +
      times.idle_ns;
}

// Keeps the processor busy for `ns` nanoseconds.
void work_for(std::int64_t ns) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
  while (std::chrono::steady_clock::now() < end) {
  }
}

constexpr std::int64_t kWork = 200'000;

TEST(StepRecorder, CountsEachMomentForTheInnermostPart) {
  StepSlot slot;
  StepRecorder recorder;
  slot.listener = &recorder;
  recorder.start(nullptr);
  {
    const StepPartScope backward(&slot, StepPart::backward);
    work_for(kWork);
    {
      const StepPartScope wait(&slot, StepPart::communication);
      work_for(2 * kWork);
    }
  }
  {
    const StepPartScope data(&slot, StepPart::data);
    work_for(kWork);
  }
  work_for(kWork);
  recorder.end_step();
  recorder.stop();
  const StepTimes times = recorder.times();
  EXPECT_EQ(times.num_steps, 1);
  EXPECT_EQ(sum_of_parts(times), times.total_ns);
  EXPECT_GE(times.backward_ns, kWork);
  EXPECT_GE(times.communication_ns, 2 * kWork);
  EXPECT_GE(times.data_ns, kWork);
  EXPECT_GE(times.other_ns + times.idle_ns, kWork);
  EXPECT_EQ(times.forward_ns, 0);
  EXPECT_EQ(times.optimizer_ns, 0);
}

TEST(StepRecorder, TellsSleepFromWorkOutsideOfParts) {
  StepRecorder recorder;
  recorder.start(nullptr);
  // A thread that waits for another thread sleeps.
  std::thread other([] { work_for(20 * kWork); });
  other.join();
  recorder.end_step();
  const StepTimes times = recorder.times();
  EXPECT_EQ(times.other_ns + times.idle_ns, times.total_ns);
  EXPECT_GT(times.idle_ns, times.other_ns);
}

TEST(StepRecorder, LooksForSleepWhereTheStepBeforeWasLongOutsideOfParts) {
  StepSlot slot;
  StepRecorder recorder;
  slot.listener = &recorder;
  recorder.start(nullptr);
  StepTimes before;
  // Runs a step that starts with `function`, outside its only part.
  const auto step = [&](auto&& function) {
    function();
    { const StepPartScope part(&slot, StepPart::forward); }
    recorder.end_step();
    const StepTimes after = recorder.times();
    StepTimes change = after;
    change.other_ns -= before.other_ns;
    change.idle_ns -= before.idle_ns;
    before = after;
    return change;
  };
  const auto sleep = [] {
    std::thread other([] { work_for(20 * kWork); });
    other.join();
  };
  StepTimes times;
  do {
    times = step([] {});
  } while (times.other_ns + times.idle_ns >= 100'000);

  times = step(sleep);
  EXPECT_EQ(times.idle_ns, 0);
  EXPECT_GE(times.other_ns, 20 * kWork);
  times = step(sleep);
  EXPECT_GT(times.idle_ns, times.other_ns);
}

TEST(StepRecorder, CountsWaitsOfAnotherThreadOnceHoweverManyWait) {
  StepSlot slot;
  StepRecorder recorder;
  slot.listener = &recorder;
  recorder.start(nullptr);
  {
    const StepPartScope backward(&slot, StepPart::backward);
    std::thread engine([&] {
      const StepPartScope one(&slot, StepPart::communication);
      const StepPartScope other(&slot, StepPart::communication);
      // A forward of another thread is not part of this rank's step.
      const StepPartScope forward(&slot, StepPart::forward);
      work_for(kWork);
    });
    engine.join();
  }
  recorder.end_step();
  const StepTimes times = recorder.times();
  EXPECT_EQ(sum_of_parts(times), times.total_ns);
  EXPECT_GE(times.communication_ns, kWork);
  EXPECT_EQ(times.forward_ns, 0);
}

TEST(StepRecorder, CountsMessagesUnderWayAsHiddenWhileNobodyWaits) {
  StepSlot slot;
  StepRecorder recorder;
  recorder.start(nullptr);
  work_for(kWork);
  recorder.end_step();
  EXPECT_EQ(recorder.times().hidden_communication_ns, 0);
  recorder.change_in_flight(1);
  work_for(kWork);
  recorder.begin(StepPart::communication, nullptr);
  work_for(kWork);
  recorder.end(StepPart::communication);
  recorder.change_in_flight(-1);
  recorder.end_step();
  const StepTimes times = recorder.times();
  EXPECT_GE(times.hidden_communication_ns, kWork);
  EXPECT_LE(
      times.hidden_communication_ns + times.communication_ns, times.total_ns);
  EXPECT_EQ(sum_of_parts(times), times.total_ns);
}

TEST(StepRecorder, MovesTheExposedTimeOfAReductionOutOfItsBackward) {
  StepSlot slot;
  StepRecorder recorder;
  slot.listener = &recorder;
  recorder.start(nullptr);
  {
    const StepPartScope backward(&slot, StepPart::backward);
    work_for(kWork);
    recorder.overlapped(123, 1000);
  }
  recorder.end_step();
  StepTimes times = recorder.times();
  EXPECT_EQ(times.communication_ns, 1000);
  EXPECT_EQ(times.hidden_communication_ns, 123);
  EXPECT_EQ(sum_of_parts(times), times.total_ns);
  {
    const StepPartScope backward(&slot, StepPart::backward);
    // More time than the part has taken cannot lie within it.
    recorder.overlapped(0, 1'000'000'000'000);
  }
  recorder.end_step();
  times = recorder.times();
  EXPECT_EQ(sum_of_parts(times), times.total_ns);
  EXPECT_LT(times.communication_ns, times.total_ns);
}

TEST(StepRecorder, CountsWhatIsLeftOnlyIfThereWasNoStep) {
  StepRecorder recorder;
  recorder.start(nullptr);
  recorder.stop();
  EXPECT_EQ(recorder.times().num_steps, 1);
  recorder.start(nullptr);
  recorder.end_step();
  work_for(kWork);
  recorder.stop();
  EXPECT_EQ(recorder.times().num_steps, 2);
}

TEST(StepRecorder, IgnoresTheEndOfAPartThatItDidNotSeeBegin) {
  StepSlot slot;
  StepRecorder recorder;
  slot.listener = &recorder;
  {
    const StepPartScope forward(&slot, StepPart::forward);
    const StepPartScope wait(&slot, StepPart::communication);
    recorder.start(nullptr);
  }
  recorder.end_step();
  const StepTimes times = recorder.times();
  EXPECT_EQ(times.forward_ns, 0);
  EXPECT_EQ(times.communication_ns, 0);
  EXPECT_EQ(sum_of_parts(times), times.total_ns);
}

StepTimes example() {
  return {
      .rank = 1,
      .num_steps = 2,
      .total_ns = 20'000'000,
      .data_ns = 2'000'000,
      .forward_ns = 5'000'000,
      .backward_ns = 8'000'000,
      .optimizer_ns = 1'000'000,
      .communication_ns = 2'500'000,
      .other_ns = 1'000'000,
      .idle_ns = 500'000,
      .hidden_communication_ns = 4'000'000};
}

TEST(StepTimes, AreATableOfTheMeanStep) {
  EXPECT_EQ(
      step_times_table({example()}),
      "rank  steps  ms per step   data  forward  backward  optimizer  "
      "communication  other  idle  (hidden communication)\n"
      "----  -----  -----------  -----  -------  --------  ---------  "
      "-------------  -----  ----  ----------------------\n"
      "1         2       10.000  10.0%    25.0%     40.0%       5.0%  "
      "        12.5%   5.0%  2.5%                   20.0%\n");
  EXPECT_THAT(step_times_table({{.rank = 3}}), HasSubstr("3         0"));
}

TEST(StepTimes, AreValuesAndJson) {
  const TrackedTable table = step_times_values({example()});
  EXPECT_THAT(
      table.columns,
      ElementsAre(
          "rank",
          "steps",
          "step_ms",
          "data_ms",
          "forward_ms",
          "backward_ms",
          "optimizer_ms",
          "communication_ms",
          "other_ms",
          "idle_ms",
          "hidden_communication_ms"));
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_EQ(table.rows[0][2], TrackedValue(10.0));
  EXPECT_EQ(table.rows[0][10], TrackedValue(2.0));
  const auto json = nlohmann::json::parse(step_times_json({example()}));
  EXPECT_EQ(json[0].at("rank"), 1);
  EXPECT_EQ(json[0].at("total_ns"), 20'000'000);
  EXPECT_EQ(json[0].at("hidden_communication_ns"), 4'000'000);
}

TEST(OperatorTable, IsSortedAndCut) {
  std::vector<OperatorAverage> rows(3);
  rows[0] = {
      .name = "aten::a",
      .count = 3,
      .cpu_time_total_us = 5000,
      .self_cpu_time_total_us = 1000};
  rows[1] = {
      .name = "aten::b",
      .count = 1,
      .cpu_time_total_us = 3000,
      .self_cpu_time_total_us = 3000,
      .flops = 2'000'000};
  rows[2] = {
      .name = "aten::c",
      .count = 2,
      .cpu_time_total_us = 10,
      .self_cpu_time_total_us = 0.5};
  const auto first_words = [](const std::string& table) {
    std::vector<std::string> words;
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);)
      words.push_back(line.substr(0, line.find(' ')));
    return words;
  };
  const std::string table = operator_table(rows, {.row_limit = 2});
  EXPECT_THAT(
      first_words(table),
      ElementsAre("Name", "-------", "aten::b", "aten::a", "Self"));
  EXPECT_THAT(table, HasSubstr("Total MFLOPs"));
  EXPECT_THAT(table, HasSubstr("2.000"));
  EXPECT_THAT(table, HasSubstr("Self CPU time total: 4.000ms"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("Mem")));
  const auto order = [&](OperatorOrder by) {
    auto words = first_words(operator_table(rows, {.sort_by = by}));
    return std::vector<std::string>(words.begin() + 2, words.end() - 1);
  };
  EXPECT_THAT(
      order(OperatorOrder::cpu_time_total),
      ElementsAre("aten::a", "aten::b", "aten::c"));
  EXPECT_THAT(
      order(OperatorOrder::count),
      ElementsAre("aten::a", "aten::c", "aten::b"));
  EXPECT_THAT(
      order(OperatorOrder::flops),
      ElementsAre("aten::b", "aten::a", "aten::c"));
  EXPECT_THAT(
      order(OperatorOrder::name), ElementsAre("aten::a", "aten::b", "aten::c"));
}

}  // namespace accelerate::step_times_test
