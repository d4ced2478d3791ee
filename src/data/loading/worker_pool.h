#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <accelerate/detail/loaded_batch.h>

/// A pool of threads that make batches ahead of the loop.
namespace accelerate::detail {

/// The state of a thread that makes batches: a worker of the pool, or the
/// loop's own thread.
class Worker {
 public:
  enum class Doing { waiting, reading, collating, transferring };

  Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  /// Publishes the current activity for timeout messages. Throws Stopped if the
  /// pass has ended. `place` is the sample's index or the batch's number.
  void now(Doing doing, std::int64_t place) {
    if (is_stopping_.load(std::memory_order_relaxed)) throw Stopped();
    place_.store(place, std::memory_order_relaxed);
    doing_.store(doing, std::memory_order_relaxed);
  }
  [[nodiscard]] Doing doing() const {
    return doing_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::int64_t place() const {
    return place_.load(std::memory_order_relaxed);
  }

  /// The generator for one sample's random numbers, seeded with `seed`.
  at::Generator& generator(std::uint64_t seed);

  /// Runs `copy` with this worker's own stream current. Returns a handle for
  /// wait_for_side_stream().
  std::shared_ptr<void> on_side_stream(
      at::Device device,
      const std::function<void()>& copy);

  struct Stopped {};

 private:
  friend class WorkerPool;
  struct SideStream;

  std::atomic<bool> is_stopping_ = false;
  std::atomic<Doing> doing_ = Doing::waiting;
  std::atomic<std::int64_t> place_ = 0;
  at::Generator generator_;
  std::unique_ptr<SideStream> side_stream_;
};

/// Makes the current stream of `device` wait for the work behind a handle from
/// on_side_stream().
void wait_for_side_stream(const std::shared_ptr<void>& done, at::Device device);
/// Keeps the tensor's memory from being reused before the current stream is
/// done with it (recordStream).
void use_on_current_stream(const at::Tensor& tensor);

struct WorkerPoolOptions {
  int num_workers = 1;
  /// Maximum number of jobs claimed but not handed out.
  std::int64_t capacity = 2;
  bool in_order = true;
  /// 0: no timeout.
  std::chrono::milliseconds timeout{0};
};

/// Makes the jobs of one pass on threads and hands them out.
class WorkerPool {
 public:
  /// Returns the next job; null at the end. Never called concurrently.
  using Claim = std::function<std::unique_ptr<LoadedBatch>(Worker&)>;

  /// Starts the threads. `claim` and its jobs must own what they use: a thread
  /// that is stuck at the end is left behind.
  WorkerPool(const WorkerPoolOptions& options, Claim claim);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  /// Stops the threads.
  ~WorkerPool();

  /// The next finished job; null at the end. Throws a job's exception in its
  /// turn, and Error on timeout.
  std::unique_ptr<LoadedBatch> next();
  /// Number of jobs before the first that was not handed out.
  [[nodiscard]] std::int64_t num_in_turn() const;
  /// Stops all threads, each at its next sample. Threads that do not stop
  /// within the timeout, if there is one, are left behind: returns the activity
  /// of one of them, otherwise "". Sets `is_claiming` if one is inside `claim`.
  std::string stop(bool& is_claiming) noexcept;

 private:
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared, std::size_t index);

  std::shared_ptr<Shared> shared_;
};

}  // namespace accelerate::detail
