#pragma once

#include <chrono>
#include <cstdint>

#include <accelerate/log.h>
#include <accelerate/progress.h>

#include "data/loading/loader_clock.h"

namespace accelerate::detail {

/// Shows how many samples of a stream have been skipped, and warns once if that
/// takes long.
class SkipProgress {
 public:
  /// `bar`: how the bar looks on this rank.
  SkipProgress(
      const Logger& logger,
      std::int64_t num_samples,
      ProgressOptions bar,
      std::chrono::milliseconds patience = std::chrono::seconds(5));
  /// Counts a sample.
  void update();

 private:
  const Logger* logger_;
  std::int64_t num_samples_;
  Progress bar_;
  LoaderClock::time_point warning_time_;
  bool has_warned_ = false;
};

}  // namespace accelerate::detail
