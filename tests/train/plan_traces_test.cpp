// Tests fitting traces of steps with different numbers of samples.
#include <algorithm>
#include <utility>
#include <vector>

#include "train/plan/fit_traces.h"

namespace accelerate {
namespace plan_traces_test {

using detail::fit_traces;
using detail::StepTrace;
using detail::TraceEvent;
using Kind = TraceEvent::Kind;

/// Writes traces.
class Script {
 public:
  std::size_t take(double bytes, std::size_t of_operator = 0) {
    trace_.events.push_back(
        {.kind = Kind::allocate,
         .index = trace_.num_allocations,
         .fixed_bytes = bytes,
         .last_operator = of_operator});
    return trace_.num_allocations++;
  }
  void give(std::size_t index, std::size_t of_operator = 0) {
    trace_.events.push_back(
        {.kind = Kind::release, .index = index, .last_operator = of_operator});
  }
  void take_for_a_moment(double bytes, std::size_t of_operator) {
    give(take(bytes, of_operator), of_operator);
  }
  void end_forward() {
    trace_.events.push_back({.kind = Kind::end_of_forward});
  }
  void complete_gradient(std::size_t allocation) {
    trace_.events.push_back(
        {.kind = Kind::gradient, .index = 0, .allocation = allocation});
  }
  [[nodiscard]] const StepTrace& trace() const { return trace_; }

 private:
  StepTrace trace_;
};

// A block of 100 bytes plus 10 per sample that is kept; `num_moments` small
// blocks; and a block that becomes a gradient.
StepTrace step(double num_samples, int num_moments, double moment = 2000) {
  constexpr std::size_t kOperator = 7;
  Script script;
  const std::size_t kept = script.take(100 + 10 * num_samples);
  for (int i = 0; i < num_moments; ++i)
    script.take_for_a_moment(moment, kOperator);
  script.end_forward();
  const std::size_t gradient = script.take(4000);
  script.complete_gradient(gradient);
  script.give(kept);
  return script.trace();
}

TEST(FitTraces, GivesSizesForAnyNumberOfSamples) {
  const auto fitted = fit_traces(step(2, 1), step(4, 1), 2);
  ASSERT_TRUE(fitted.has_value());
  ASSERT_EQ(fitted->events.size(), step(2, 1).events.size());
  EXPECT_EQ(fitted->events[0].fixed_bytes, 100);
  EXPECT_EQ(fitted->events[0].bytes_per_sample, 10);
  EXPECT_EQ(fitted->events[1].fixed_bytes, 2000);
  EXPECT_EQ(fitted->events[1].bytes_per_sample, 0);
}

TEST(FitTraces, LeavesOutSmallBlocksThatOneTraceHasMoreOf) {
  for (const auto& [few, more] :
       std::vector<std::pair<int, int>>{{2, 4}, {0, 1}, {3, 1}}) {
    const auto fitted = fit_traces(step(2, few), step(4, more), 2);
    ASSERT_TRUE(fitted.has_value()) << few << " " << more;
    EXPECT_EQ(
        fitted->events.size(), step(2, std::min(few, more)).events.size());
    EXPECT_EQ(fitted->events[0].bytes_per_sample, 10);
    // Indices refer to the smaller trace.
    const TraceEvent& gradient = fitted->events[fitted->events.size() - 2];
    EXPECT_EQ(gradient.kind, Kind::gradient);
    EXPECT_EQ(gradient.allocation, static_cast<std::size_t>(few) + 1);
    EXPECT_EQ(fitted->events.back().index, 0U);
  }
}

TEST(FitTraces, LeaveOutLargeBlocksOfAnOperatorThatTakesSuchInBoth) {
  const auto fitted = fit_traces(step(2, 1, 1 << 20), step(4, 3, 1 << 20), 2);
  ASSERT_TRUE(fitted.has_value());
  EXPECT_EQ(fitted->events.size(), step(2, 1).events.size());
  EXPECT_EQ(fitted->events[1].fixed_bytes, 1 << 20);
}

TEST(FitTraces, LeaveOutBlocksWithinALargeOne) {
  const auto within = [](int num_moments) {
    Script script;
    const std::size_t large = script.take(1 << 20, 5);
    for (int i = 0; i < num_moments; ++i) script.take_for_a_moment(1000, 5);
    script.give(large, 5);
    return script.trace();
  };
  const auto fitted = fit_traces(within(2), within(4), 2);
  ASSERT_TRUE(fitted.has_value());
  EXPECT_EQ(fitted->events.size(), within(2).events.size());
}

TEST(FitTraces, FailIfLargeBlocksOrOtherEventsDiffer) {
  EXPECT_FALSE(fit_traces(step(2, 0), step(4, 1, 1 << 20), 2).has_value());
  Script without_end;
  without_end.take(120);
  EXPECT_FALSE(fit_traces(step(2, 0), without_end.trace(), 2).has_value());
  EXPECT_FALSE(fit_traces(without_end.trace(), step(2, 0), 2).has_value());
}

}  // namespace plan_traces_test
}  // namespace accelerate
