#include "launch/board/straggler_detector.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// The phases of a step.
constexpr std::array kStepPhases{
    RankPhase::data,
    RankPhase::forward,
    RankPhase::backward,
    RankPhase::optimizer};

std::size_t index_of(RankPhase phase) {
  return static_cast<std::size_t>(phase);
}

std::uint32_t step_us(const RankActivity& rank) {
  std::uint32_t sum = 0;
  for (const RankPhase phase : kStepPhases)
    sum += rank.median_us[index_of(phase)];
  return sum;
}

std::uint64_t num_timed(const RankActivity& rank) {
  std::uint64_t most = 0;
  for (const RankPhase phase : kStepPhases)
    most = std::max(most, rank.num_timed[index_of(phase)]);
  return most;
}

// Returns the median over all ranks but one; 0 if there are none.
template <class Value>
std::uint32_t median_of_others(
    std::span<const RankActivity> ranks,
    int left_out,
    Value&& value) {
  std::vector<std::uint32_t> values;
  for (const RankActivity& rank : ranks) {
    if (rank.rank != left_out && num_timed(rank) > 0)
      values.push_back(value(rank));
  }
  if (values.empty()) return 0;
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

StragglerReport explain(
    std::span<const RankActivity> ranks,
    const RankActivity& slow,
    std::uint32_t others) {
  StragglerReport report;
  report.rank = slow.rank;
  report.step_us = step_us(slow);
  report.others_step_us = others;
  std::int64_t most = -1;
  for (const RankPhase phase : kStepPhases) {
    const std::size_t index = index_of(phase);
    const std::uint32_t theirs =
        median_of_others(ranks, slow.rank, [&](const RankActivity& rank) {
          return rank.median_us[index];
        });
    const std::int64_t excess =
        std::int64_t{slow.median_us[index]} - std::int64_t{theirs};
    if (excess <= most) continue;
    most = excess;
    report.phase = phase;
    report.phase_us = slow.median_us[index];
    report.others_phase_us = theirs;
  }
  return report;
}

std::string milliseconds_of(std::uint32_t microseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f ms", microseconds / 1000.0);
  return text;
}

}  // namespace

std::optional<StragglerReport> StragglerDetector::look(
    std::span<const RankActivity> ranks,
    Clock::time_point now) {
  std::optional<StragglerReport> report;
  for (const RankActivity& rank : ranks) {
    const std::uint32_t mine = step_us(rank);
    const std::uint32_t others = median_of_others(ranks, rank.rank, &step_us);
    if (others == 0 || mine < options_.factor * others) {
      slow_.erase(rank.rank);
      continue;
    }
    Slow& slow =
        slow_
            .try_emplace(
                rank.rank, Slow{.since = now, .num_timed = num_timed(rank)})
            .first->second;
    // Old durations say nothing about the present.
    if (slow.is_reported || now - slow.since < options_.time ||
        num_timed(rank) == slow.num_timed)
      continue;
    slow.is_reported = true;
    if (!report) report = explain(ranks, rank, others);
  }
  return report;
}

std::string describe(const StragglerReport& report) {
  return format(
      "rank {} is slower than the others: its steps take {} without waiting, "
      "theirs {}; most of it {}: {} and {}\n",
      report.rank,
      milliseconds_of(report.step_us),
      milliseconds_of(report.others_step_us),
      describe(report.phase),
      milliseconds_of(report.phase_us),
      milliseconds_of(report.others_phase_us));
}

}  // namespace accelerate::detail
