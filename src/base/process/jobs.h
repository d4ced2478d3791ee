#pragma once

#include <cstddef>
#include <functional>

namespace accelerate::detail {

/// Number of threads worth using to move `num_jobs` pieces of data: one per
/// core, at most four, since memory and disks soon saturate.
std::size_t num_helpful_threads(std::size_t num_jobs);

/// Calls job(thread, i) for each i below `num_jobs` on `num_threads` threads;
/// the caller is thread 0. The first error stops all threads and is rethrown.
void run_jobs(
    std::size_t num_jobs,
    std::size_t num_threads,
    const std::function<void(std::size_t thread, std::size_t i)>& job);

}  // namespace accelerate::detail
