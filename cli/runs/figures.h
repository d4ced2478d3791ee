#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/runs/run_record.h"

namespace accelerate::cli {

/// Which values of a figure are better.
enum class Better { lower, higher, unknown };

/// Guesses from the name: losses and errors shrink, accuracies and rates grow.
Better better_values(std::string_view name);

/// The extremes of the values, ignoring NaN, and the last value. Pointers are
/// into `points`; null if there is no such value.
struct Extremes {
  const RunRecord::Point* min = nullptr;
  const RunRecord::Point* max = nullptr;
  const RunRecord::Point* last = nullptr;

  /// The best value; null if it is unknown which values are better.
  [[nodiscard]] const RunRecord::Point* best(Better better) const;
};

Extremes extremes_of(const std::vector<RunRecord::Point>& points);

/// A value for display: six digits, or "nan" or "inf".
std::string short_number(double value);
/// The shortest text that parses to the same value.
std::string exact_number(double value);
/// Seconds as "2 h 05 min", "3 min 20 s" or "1.5 s".
std::string duration_text(double seconds);
/// Seconds since 1970 as "2026-01-31 17:05:00" in the local time zone.
std::string time_text(double seconds);

}  // namespace accelerate::cli
