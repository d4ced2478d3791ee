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

// A kernel's scratch memory that grows up to `most` bytes, beside a block that
// is kept.
StepTrace step_with_scratch(double num_samples, double most) {
  Script script;
  const std::size_t kept = script.take(1000 * num_samples);
  script.take_for_a_moment(std::min(9000 + 256 * num_samples, most), 7);
  script.end_forward();
  script.give(kept);
  return script.trace();
}

StepTrace fit_with_scratch(std::int64_t num_samples) {
  constexpr double kMost = 200'000;
  const auto count = static_cast<double>(num_samples);
  return fit_traces(
             step_with_scratch(count, kMost),
             step_with_scratch(2 * count, kMost),
             num_samples)
      .value();
}

TEST(FitTraces, LetsScratchGrowAsWithManySamples) {
  StepTrace trace = fit_with_scratch(2);
  EXPECT_EQ(detail::bytes_of(trace.events[1], 4096), 9000 + 256 * 4096);
  detail::limit_scratch(trace, fit_with_scratch(1024));
  EXPECT_EQ(detail::bytes_of(trace.events[1], 4), 9000 + 256 * 4);
  EXPECT_EQ(detail::bytes_of(trace.events[1], 4096), 200'000);
  // Blocks that are not freed at once are left as they are.
  EXPECT_FALSE(trace.events[0].grows_less);
  EXPECT_EQ(detail::bytes_of(trace.events[0], 4096), 4'096'000);
}

TEST(FitTraces, LeaveScratchAloneIfManySamplesTakeAnotherWay) {
  StepTrace trace = fit_with_scratch(2);
  StepTrace other = fit_with_scratch(1024);
  other.events[1].last_operator = 8;
  detail::limit_scratch(trace, other);
  EXPECT_FALSE(trace.events[1].grows_less);
  other = fit_with_scratch(1024);
  other.events.pop_back();
  detail::limit_scratch(trace, other);
  EXPECT_FALSE(trace.events[1].grows_less);
}

TEST(FitTraces, KnowsWhatATraceNeeds) {
  const StepTrace trace = fit_with_scratch(2);
  EXPECT_EQ(detail::peak_bytes(trace, 10), 10'000 + 9000 + 2560);
  EXPECT_FALSE(detail::has_large_scratch(trace, 100));
  EXPECT_TRUE(detail::has_large_scratch(trace, 1000));
  EXPECT_FALSE(detail::has_large_scratch(
      fit_traces(step(2, 1), step(4, 1), 2).value(), 1 << 20));
}

}  // namespace plan_traces_test
}  // namespace accelerate
