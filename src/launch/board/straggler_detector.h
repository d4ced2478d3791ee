#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "launch/board/rank_activity.h"

namespace accelerate::detail {

/// A rank whose steps take longer than the others'.
struct StragglerReport {
  int rank = 0;
  /// The phase in which it loses most time, and the time per step there on this
  /// rank and, as a median, on the others.
  RankPhase phase = RankPhase::starting;
  std::uint32_t phase_us = 0;
  std::uint32_t others_phase_us = 0;
  /// The rank's time for all phases together.
  std::uint32_t step_us = 0;
  std::uint32_t others_step_us = 0;
};

/// Finds ranks that are slower than the others for some time, from the
/// durations of phases on the board. These exclude waits for other ranks, where
/// fast ranks spend the time that slow ones take longer.
class StragglerDetector {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    /// A slow rank takes at least this many times as long as the others.
    double factor = 1.2;
    /// How long it must have been slow.
    std::chrono::milliseconds time = std::chrono::minutes(1);
  };

  StragglerDetector() = default;
  explicit StragglerDetector(const Options& options) : options_(options) {}

  /// Returns a report the first time that a rank has been slow for long enough,
  /// and again only after it has recovered.
  std::optional<StragglerReport> look(
      std::span<const RankActivity> ranks,
      Clock::time_point now);

 private:
  struct Slow {
    Clock::time_point since{};
    bool is_reported = false;
    /// Number of timed steps when it was first seen to be slow.
    std::uint64_t num_timed = 0;
  };

  Options options_;
  std::map<int, Slow> slow_;
};

/// Formats a report as one line, with its line break.
std::string describe(const StragglerReport& report);

}  // namespace accelerate::detail
