#include "cli/launch/nodes/join_launch.h"

#include <chrono>

#include "base/text/text.h"
#include "cli/launch/nodes/launch_times.h"

namespace accelerate::cli {

std::string join_launch(
    StoreClient& client,
    const LaunchPlan& plan,
    bool waits,
    const Signals& signals,
    const LaunchOutput& output) {
  using Clock = std::chrono::steady_clock;
  // How long the store may hold the place of a launcher that is gone.
  constexpr std::chrono::seconds kTimeUntilFree{20};
  const auto begun_at = Clock::now();
  bool is_reported = false;
  return client.join(
      plan.machine_rank,
      plan.given_secret,
      waits ? kTimeUntilFree : std::chrono::seconds(0),
      [&] {
        signals.heed();
        if (is_reported || Clock::now() - begun_at < kTimeUntilReported) return;
        is_reported = true;
        output.say(detail::format(
            "accelerate-cpp: waiting for the place of machine {}, which "
            "another launcher still has\n",
            plan.machine_rank));
      });
}

}  // namespace accelerate::cli
