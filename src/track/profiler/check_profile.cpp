#include "track/profiler/check_profile.h"

#include <algorithm>

#include <accelerate/error.h>

#include "track/profiler/device_recorder.h"

namespace accelerate::detail {

bool records(const ProfileOptions& options, ProfilerActivity activity) {
  return !options.activities ||
      std::find(
          options.activities->begin(), options.activities->end(), activity) !=
      options.activities->end();
}

void check_profile(const ProfileOptions& options) {
  if (options.schedule_option)
    (void)profiler_action(*options.schedule_option, 0);
  if (!options.activities || !records(options, ProfilerActivity::cuda) ||
      DeviceRecorder::has_device()) {
    return;
  }
  throw ConfigError(
      "[track] a profile was asked for the activity \"cuda\", but this process "
      "has no CUDA device, or has not loaded LibTorch's CUDA library; valid "
      "activities: \"cpu\"");
}

}  // namespace accelerate::detail
