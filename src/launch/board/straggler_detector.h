#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "launch/board/rank_activity.h"

namespace accelerate::detail {

/// A rank that takes longer for its steps than the others.
struct StragglerReport {
  int rank = 0;
  /// The phase in which it loses most, and how long a step is in it here and,
  /// in the median, on the other ranks.
  RankPhase phase = RankPhase::starting;
  std::uint32_t phase_us = 0;
  std::uint32_t others_phase_us = 0;
  /// The same for all phases together.
  std::uint32_t step_us = 0;
  std::uint32_t others_step_us = 0;
};

/// Finds ranks that are slower than the others for some time, from the
/// durations of phases on the board. These are without the waits for other
/// ranks, in which fast ranks spend what slow ones take longer.
class StragglerDetector {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    /// How many times the others' time a slow rank takes.
    double factor = 1.2;
    /// For how long it has to be slow.
    std::chrono::milliseconds time = std::chrono::minutes(1);
  };

  StragglerDetector() = default;
  explicit StragglerDetector(const Options& options) : options_(options) {}

  /// A report the first time that a rank has been slow for long enough, and
  /// again only after it was not.
  std::optional<StragglerReport> look(
      std::span<const RankActivity> ranks,
      Clock::time_point now);

 private:
  struct Slow {
    Clock::time_point since{};
    bool is_reported = false;
    /// Timed steps when it was first seen to be slow.
    std::uint64_t num_timed = 0;
  };

  Options options_;
  std::map<int, Slow> slow_;
};

/// One line, with its line break.
std::string describe(const StragglerReport& report);

}  // namespace accelerate::detail
