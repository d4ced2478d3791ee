#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/export.h>

// This version has no profiler. Here are the options of one, which are checked
// and reported as without effect, and the arithmetic of its schedule, for
// programs that drive LibTorch's profiler themselves.

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

/// The action of a profiler in step number `step`, counted from 0. Records
/// nothing itself. Throws ConfigError if the schedule has a negative number or
/// no active step.
ACCELERATE_API ProfilerAction
profiler_action(const ProfileSchedule& schedule, std::int64_t step);

/// What a profiler records: operators on the host, or kernels on the device.
enum class ProfilerActivity { cpu, cuda };

/// Parses "cpu" or "cuda". Throws ConfigError for another name.
ACCELERATE_API ProfilerActivity parse_profiler_activity(std::string_view name);

/// What a profiler records, as Accelerate's ProfileKwargs spells it. Given as
/// AcceleratorOptions::profile, it is checked, has no effect in this version,
/// and is reported.
struct ProfileOptions {
  /// Unset: the CPU, and the accelerator if there is one.
  std::optional<std::vector<ProfilerActivity>> activities = std::nullopt;
  /// Unset: every step is recorded.
  std::optional<ProfileSchedule> schedule_option = std::nullopt;
  /// Shapes of the operators' inputs.
  bool record_shapes = false;
  /// Allocations and frees of tensors.
  bool profile_memory = false;
  /// File and line of each operator's caller.
  bool with_stack = false;
  /// Estimates of floating-point operations.
  bool with_flops = false;
  /// Modules that called each operator.
  bool with_modules = false;
  /// Directory of the traces, one per rank; empty: none are written.
  std::string output_trace_dir = {};
};

}  // namespace accelerate
