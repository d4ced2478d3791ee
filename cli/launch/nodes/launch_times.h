#pragma once

#include <chrono>

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

}  // namespace accelerate::cli
