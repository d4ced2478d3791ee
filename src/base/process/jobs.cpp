#include "base/process/jobs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace accelerate::detail {

std::size_t num_helpful_threads(std::size_t num_jobs) {
  constexpr std::size_t kMost = 4;
  const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1U);
  return std::clamp<std::size_t>(num_jobs, 1, std::min(cores, kMost));
}

void run_jobs(
    std::size_t num_jobs,
    std::size_t num_threads,
    const std::function<void(std::size_t thread, std::size_t i)>& job) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](std::size_t thread) {
    try {
      while (true) {
        const std::size_t i = next.fetch_add(1);
        if (i >= num_jobs) return;
        job(thread, i);
      }
    } catch (...) {
      next = num_jobs;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < num_threads; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace accelerate::detail
