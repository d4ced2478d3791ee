#pragma once

#include <cstdint>

namespace accelerate::faults {

// What logging_run logs and kill_logging expects.

inline constexpr int kValuesInStep = 10;
/// More than any step's number.
inline constexpr std::int64_t kMostSteps = 1'000'000;

/// Value number `number` of a step, as the given attempt logs it.
inline double
logged_value(std::int64_t attempt, std::int64_t step, int number) {
  return static_cast<double>(
      (attempt * kMostSteps + step) * kValuesInStep + number);
}

}  // namespace accelerate::faults
