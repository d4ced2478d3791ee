#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "support/run_on_ranks.h"

namespace accelerate::testing {

/// A pool of ranks: each thread makes one `Rank` from its options and then runs
/// jobs, so that a property can be tested thousands of times over one
/// connection.
template <class Rank>
class RankPool {
 public:
  using Job = std::function<void(Rank&)>;

  RankPool(int num_ranks, std::function<Rank(const WorldOptions&)> make)
      : failures_(static_cast<std::size_t>(num_ranks)) {
    threads_ = std::thread([this, num_ranks, make = std::move(make)] {
      run_on_ranks(num_ranks, [&](const WorldOptions& options) {
        Rank rank = make(options);
        for (int round = 1;; ++round) {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return round_ == round || is_ending_; });
          if (is_ending_) return;
          const Job& job = job_;
          lock.unlock();
          std::exception_ptr failure;
          try {
            job(rank);
          } catch (...) {
            failure = std::current_exception();
          }
          lock.lock();
          failures_[static_cast<std::size_t>(*options.rank)] = failure;
          ++num_done_;
          changed_.notify_all();
        }
      });
    });
  }
  RankPool(const RankPool&) = delete;
  RankPool& operator=(const RankPool&) = delete;
  ~RankPool() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    threads_.join();
  }

  /// Runs `job` on all ranks at once. Rethrows the error of the first rank that
  /// failed.
  void run(Job job) {
    std::unique_lock lock(mutex_);
    job_ = std::move(job);
    num_done_ = 0;
    ++round_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return num_done_ == failures_.size(); });
    for (const std::exception_ptr& failure : failures_) {
      if (failure) std::rethrow_exception(failure);
    }
  }

 private:
  std::vector<std::exception_ptr> failures_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Job job_;
  int round_ = 0;
  std::size_t num_done_ = 0;
  bool is_ending_ = false;
  std::thread threads_;
};

}  // namespace accelerate::testing
