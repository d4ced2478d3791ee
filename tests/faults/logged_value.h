#pragma once

#include <cstdint>

namespace accelerate::faults {

// What logging_run logs, so that kill_logging knows what to expect.

inline constexpr int kValuesInStep = 10;
/// More than any step's number.
inline constexpr std::int64_t kMostSteps = 1'000'000;

/// The value of that number in a step, as that attempt at the run logs it.
inline double
logged_value(std::int64_t attempt, std::int64_t step, int number) {
  return static_cast<double>(
      (attempt * kMostSteps + step) * kValuesInStep + number);
}

}  // namespace accelerate::faults
