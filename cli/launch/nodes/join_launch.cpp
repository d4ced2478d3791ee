#include "cli/launch/nodes/join_launch.h"

#include <optional>
#include <utility>

#include "base/text/text.h"

namespace accelerate::cli {

std::function<void(const std::string& problem)> while_connecting(
    const Signals& signals,
    const LaunchOutput& output,
    std::string address,
    std::chrono::milliseconds until_reported) {
  using Clock = std::chrono::steady_clock;
  return [&signals,
          &output,
          address = std::move(address),
          report_at = std::optional(Clock::now() + until_reported)](
             const std::string& problem) mutable {
    signals.heed();
    if (!report_at || Clock::now() < *report_at) return;
    report_at.reset();
    output.say(detail::format(
        "accelerate-cpp: waiting for the launcher of machine 0: cannot connect "
        "to {} ({})\n",
        address,
        problem));
  };
}

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
