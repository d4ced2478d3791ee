#pragma once

#include <chrono>

namespace accelerate::cli {

/// How long launchers wait for those of other machines, which may still be
/// starting.
inline constexpr std::chrono::minutes kStartTimeout{5};
/// After this long, a launcher says what it waits for.
inline constexpr std::chrono::seconds kTimeUntilReported{3};
/// How long machine 0 keeps the store for the last requests of others.
inline constexpr std::chrono::seconds kTimeToLeave{5};
/// The number of the attempt under way.
inline constexpr const char* kAttemptKey = "accelerate-cpp/attempt";

}  // namespace accelerate::cli
