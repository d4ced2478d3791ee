#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Runs blocking tasks one at a time, in the order they were queued. A thread
/// that waits for a task runs the tasks before it, and the task itself;
/// run_in_background() starts a thread that runs them while no thread waits.
/// After a failure, all later tasks fail with it. Thread-safe.
class SerialQueue : public std::enable_shared_from_this<SerialQueue> {
 public:
  /// `on_failure` is called once, with the first failure.
  explicit SerialQueue(std::function<void(const std::exception&)> on_failure);
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;
  ~SerialQueue();

  /// Queues a task and returns its work, whose future holds `outputs`. Throws
  /// the first failure if there was one.
  Work push(std::function<void()> task, std::vector<at::Tensor> outputs);
  void run_in_background();
  /// Fails tasks that have not begun, and waits for those that have.
  void close();
  /// False in a forked child, which lacks the threads that the destructor would
  /// wait for.
  [[nodiscard]] bool is_own_process() const;

 private:
  friend class SerialWork;
  struct Task {
    std::function<void()> body;
    bool is_finished = false;
    std::exception_ptr failure;
    std::function<void(std::exception_ptr)> listener;
  };

  void wait(const std::shared_ptr<Task>& task);
  void on_finish(
      const std::shared_ptr<Task>& task,
      std::function<void(std::exception_ptr)> listener);
  [[nodiscard]] bool is_finished(const Task& task);
  void run_first(std::unique_lock<std::mutex>& lock);
  void finish(
      std::unique_lock<std::mutex>& lock,
      const std::shared_ptr<Task>& task,
      std::exception_ptr failure);
  void run_worker();

  std::function<void(const std::exception&)> on_failure_;
  pid_t process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;
  std::exception_ptr failure_;
  bool is_running_ = false;
  bool is_closed_ = false;
  bool wants_worker_ = false;
  int num_waiting_ = 0;
  std::thread worker_;
};

}  // namespace accelerate::detail
