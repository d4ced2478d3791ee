#include "track/profiler/check_profile.h"

#include <accelerate/error.h>

namespace accelerate::detail {

void check_profile(const ProfileOptions& options) {
  if (options.schedule_option)
    (void)profiler_action(*options.schedule_option, 0);
  if (!options.activities) return;
  for (const ProfilerActivity activity : *options.activities) {
    if (activity == ProfilerActivity::cpu) continue;
    throw ConfigError(
        "[track] a profile was asked for the activity \"cuda\", but this "
        "version records no kernels of devices; valid activities: \"cpu\"");
  }
}

}  // namespace accelerate::detail
