#pragma once

#include <cstdint>
#include <string_view>

#include <accelerate/export.h>

namespace accelerate {

/// Decides which steps of a training loop a profiler records: `skip_first`
/// steps are skipped, then follow cycles of `wait` steps without it, `warmup`
/// steps whose records are dropped, and `active` recorded ones. Like
/// torch.profiler.schedule.
struct ProfileSchedule {
  std::int64_t wait = 0;
  std::int64_t warmup = 0;
  /// At least 1.
  std::int64_t active = 1;
  /// Number of cycles; 0: until the end.
  std::int64_t repeat = 0;
  std::int64_t skip_first = 0;
};

/// What a profiler does in a step.
enum class ProfilerAction {
  none,
  warmup,
  record,
  record_and_save,  ///< the last recorded step of a cycle
};

/// The action of a profiler in step number `step`, counted from 0. Throws
/// ConfigError if the schedule has a negative number or no active step.
ACCELERATE_API ProfilerAction
profiler_action(const ProfileSchedule& schedule, std::int64_t step);

/// What a profiler records: operators on the host, or kernels on the device.
enum class ProfilerActivity { cpu, cuda };

/// Parses "cpu" or "cuda". Throws ConfigError for another name.
ACCELERATE_API ProfilerActivity parse_profiler_activity(std::string_view name);

}  // namespace accelerate
