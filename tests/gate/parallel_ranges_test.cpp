// Ranges that run on LibTorch's threads.
#include "gate/parallel_ranges.h"

#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

namespace accelerate {
namespace parallel_ranges_test {

/// Sets the number of LibTorch's threads while it lives.
class ThreadsScope {
 public:
  explicit ThreadsScope(int count) { at::set_num_threads(count); }
  ~ThreadsScope() { at::set_num_threads(before_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int before_ = at::get_num_threads();
};

/// Returns the threads that get ranges; each number must be in exactly one
/// range.
std::set<std::thread::id> threads_of(std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<int> calls(static_cast<std::size_t>(count));
  detail::for_parallel_ranges(
      count, grain, [&](std::int64_t begin, std::int64_t end) {
        const std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
        for (std::int64_t i = begin; i < end; ++i)
          ++calls.at(static_cast<std::size_t>(i));
      });
  EXPECT_EQ(calls, std::vector<int>(static_cast<std::size_t>(count), 1));
  return threads;
}

TEST(ParallelRanges, UseAllThreadsFromTheGrainOn) {
  const ThreadsScope scope(2);
  EXPECT_EQ(threads_of(1000, 1).size(), 2U);
  EXPECT_EQ(threads_of(1000, 500).size(), 2U);
  EXPECT_EQ(
      threads_of(1000, 1001),
      std::set<std::thread::id>{std::this_thread::get_id()});
  EXPECT_TRUE(threads_of(0, 1).empty());
}

TEST(ParallelRanges, StayOnOneThreadWhereLibTorchHasOne) {
  const ThreadsScope scope(1);
  EXPECT_EQ(
      threads_of(1000, 1),
      std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST(ParallelRanges, PassErrorsOn) {
  const ThreadsScope scope(2);
  EXPECT_THROW(
      detail::for_parallel_ranges(
          100,
          1,
          [](std::int64_t, std::int64_t) { throw std::runtime_error("no"); }),
      std::runtime_error);
}

}  // namespace parallel_ranges_test
}  // namespace accelerate
