#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

/// Threads that make batches ahead of the loop.
namespace accelerate::detail {

/// One of the threads that make batches; the loop's own, if there are no
/// others.
class ACCELERATE_API Worker {
 public:
  enum class Doing { waiting, reading, collating, transferring };

  Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  /// Publishes the current activity for timeout messages. Throws Stopped if the
  /// pass has ended. `place` is the sample's index, or the batch's number.
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

  /// The generator for one sample's random numbers; made when first asked for.
  at::Generator& generator(std::uint64_t seed);

  /// Runs `copy` so that device work is queued on this worker's own stream.
  /// Returns a handle for which another stream can wait.
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

/// Makes the calling thread's stream of `device` wait for the result of
/// on_side_stream; `tensor` may then be used on it.
ACCELERATE_API void wait_for_side_stream(
    const std::shared_ptr<void>& done,
    at::Device device);
ACCELERATE_API void use_on_current_stream(const at::Tensor& tensor);

/// One batch on its way: claimed, then made.
class ACCELERATE_API BatchJob {
 public:
  BatchJob() = default;
  BatchJob(const BatchJob&) = delete;
  BatchJob& operator=(const BatchJob&) = delete;
  virtual ~BatchJob();
  virtual void run(Worker& worker) = 0;

  /// True for the last batch of the pass.
  bool is_last = false;
};

struct WorkerPoolOptions {
  int num_workers = 1;
  /// Maximum number of jobs claimed and not handed out.
  std::int64_t capacity = 2;
  bool in_order = true;
  /// Without a timeout it is 0.
  std::chrono::milliseconds timeout{0};
};

/// Makes the jobs of one pass on threads and hands them out.
class ACCELERATE_API WorkerPool {
 public:
  /// The next job; nothing at the end. Never called concurrently.
  using Claim = std::function<std::unique_ptr<BatchJob>(Worker&)>;

  /// Threads start at once. Whatever `claim` and its jobs use must live as long
  /// as they do: a thread that is stuck at the end is left behind.
  WorkerPool(const WorkerPoolOptions& options, Claim claim);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  /// Stops the threads.
  ~WorkerPool();

  /// The next job, made; nothing at the end. Throws a job's exception, in its
  /// turn, and Error at a timeout.
  std::unique_ptr<BatchJob> next();
  /// Number of jobs handed out before the first that was not.
  [[nodiscard]] std::int64_t num_in_turn() const;
  /// Ends all threads, each at its next sample. Those that do not end within
  /// the timeout, if there is one, are left behind: returns what one of them is
  /// doing, else "". `is_claiming` is set if one is inside `claim`.
  std::string stop(bool& is_claiming) noexcept;

 private:
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared, std::size_t index);

  std::shared_ptr<Shared> shared_;
};

}  // namespace accelerate::detail
