#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace accelerate::detail {

/// Sleeps while `word`, which processes may share, equals `expected`, for at
/// most `longest`. May wake up early.
void futex_wait(
    std::atomic<std::uint32_t>& word,
    std::uint32_t expected,
    std::chrono::nanoseconds longest);

/// Wakes all threads that sleep on `word`.
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace accelerate::detail
