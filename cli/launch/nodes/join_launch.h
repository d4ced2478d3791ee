#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/output/launch_output.h"
#include "cli/launch/signals.h"
#include "cli/store/store_client.h"

namespace accelerate::cli {

/// How long launchers wait for launchers on other machines, which may still be
/// starting.
inline constexpr std::chrono::minutes kStartTimeout{5};
/// After this time, a launcher says what it is waiting for.
inline constexpr std::chrono::seconds kTimeUntilReported{3};
/// How long machine 0 keeps the store for other machines' last requests.
inline constexpr std::chrono::seconds kTimeToLeave{5};
/// The number of the current attempt.
inline constexpr const char* kAttemptKey = "accelerate-cpp/attempt";

/// Returns the function that a launcher calls between attempts to connect to
/// machine 0 at `address`: it handles signals, which may throw Stopped, and
/// after a while reports once why it cannot connect.
std::function<void(const std::string& problem)> while_connecting(
    const Signals& signals,
    const LaunchOutput& output,
    std::string address,
    std::chrono::milliseconds until_reported = kTimeUntilReported);

/// Joins machine 0's launch as the launcher of `plan.machine_rank`, and returns
/// the launch's secret. With `waits`, first waits for a launcher that still
/// holds the place to end, and reports that after a while. Throws as
/// StoreClient::join(), or Stopped.
std::string join_launch(
    StoreClient& client,
    const LaunchPlan& plan,
    bool waits,
    const Signals& signals,
    const LaunchOutput& output);

}  // namespace accelerate::cli
