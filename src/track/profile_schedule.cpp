#include <accelerate/profiler.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

ProfilerAction profiler_action(
    const ProfileSchedule& schedule,
    std::int64_t step) {
  if (schedule.wait < 0 || schedule.warmup < 0 || schedule.active < 1 ||
      schedule.repeat < 0 || schedule.skip_first < 0 || step < 0) {
    throw ConfigError(
        "[track] wait, warmup, repeat and skip_first of a profile schedule "
        "must be at least 0, and active at least 1, but are not");
  }
  if (step < schedule.skip_first) return ProfilerAction::none;
  const std::int64_t cycle = schedule.wait + schedule.warmup + schedule.active;
  const std::int64_t since = step - schedule.skip_first +
      (schedule.skip_first_wait ? schedule.wait : 0);
  if (schedule.repeat > 0 && since / cycle >= schedule.repeat)
    return ProfilerAction::none;
  const std::int64_t at = since % cycle;
  if (at < schedule.wait) return ProfilerAction::none;
  if (at < schedule.wait + schedule.warmup) return ProfilerAction::warmup;
  return at + 1 < cycle ? ProfilerAction::record
                        : ProfilerAction::record_and_save;
}

ProfilerActivity parse_profiler_activity(std::string_view name) {
  if (name == "cpu") return ProfilerActivity::cpu;
  if (name == "cuda") return ProfilerActivity::cuda;
  throw ConfigError(detail::format(
      "[track] a profiler activity must be \"cpu\" or \"cuda\", but is \"{}\"",
      name));
}

}  // namespace accelerate
