#pragma once

#include <malloc.h>
#include <time.h>

#include <chrono>
#include <string>
#include <vector>

#include "report.h"

namespace accelerate::benchmarks {

/// Makes glibc keep freed memory. Otherwise, in either of two loops, it returns
/// memory to the system and allocates it again, which makes that loop seem up
/// to twice as slow.
inline void keep_freed_memory() {
  constexpr int kBytes = 256 << 20;
  mallopt(M_MMAP_THRESHOLD, kBytes);
  mallopt(M_TRIM_THRESHOLD, kBytes);
}

struct Interleaved {
  std::vector<double> ours, baseline;
};

/// CPU time of this thread, which other programs disturb less than the time
/// that passes.
struct ThreadTime {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<ThreadTime>;
  [[maybe_unused]] static constexpr bool is_steady = true;
  static time_point now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time_point(
        std::chrono::seconds(time.tv_sec) +
        std::chrono::nanoseconds(time.tv_nsec));
  }
};

/// Microseconds per call of two functions, measured in interleaved blocks. The
/// order alternates, so that a trend favours neither.
template <class Clock = std::chrono::steady_clock, class Ours, class Baseline>
Interleaved interleave(
    int num_blocks,
    int calls_in_block,
    Ours&& ours,
    Baseline&& baseline) {
  const auto block = [&](auto& call) {
    const auto start = Clock::now();
    for (int i = 0; i < calls_in_block; ++i) call();
    const std::chrono::duration<double, std::micro> elapsed =
        Clock::now() - start;
    return elapsed.count() / calls_in_block;
  };
  block(baseline);
  block(ours);
  Interleaved times;
  for (int i = 0; i < num_blocks; ++i) {
    if (i % 2 == 0) times.baseline.push_back(block(baseline));
    times.ours.push_back(block(ours));
    if (i % 2 == 1) times.baseline.push_back(block(baseline));
  }
  return times;
}

inline void report_interleaved(
    const std::string& name,
    const std::string& metric,
    const Interleaved& times) {
  report(
      {name,
       metric,
       median(times.ours),
       "us",
       median(times.baseline),
       median(times.ours) / median(times.baseline),
       times.ours.size()});
}

}  // namespace accelerate::benchmarks
