#pragma once

#include <chrono>

namespace accelerate::detail {

using LoaderClock = std::chrono::steady_clock;
inline double seconds_between(
    LoaderClock::time_point begin,
    LoaderClock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace accelerate::detail
