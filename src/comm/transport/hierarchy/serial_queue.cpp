#include "comm/transport/hierarchy/serial_queue.h"

#include <stdexcept>
#include <utility>

#include <unistd.h>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

namespace accelerate::detail {

class SerialWork final : public c10d::Work {
 public:
  SerialWork(
      std::shared_ptr<SerialQueue> queue,
      std::shared_ptr<SerialQueue::Task> task,
      std::vector<at::Tensor> outputs)
      : queue_(std::move(queue)),
        task_(std::move(task)),
        outputs_(std::move(outputs)) {}

  bool isCompleted() override { return queue_->is_finished(*task_); }
  [[nodiscard]] bool isSuccess() const override {
    return queue_->is_finished(*task_) && !task_->failure;
  }
  bool wait(std::chrono::milliseconds) override {
    queue_->wait(task_);
    return true;
  }
  std::vector<at::Tensor> result() override { return outputs_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    queue_->on_finish(
        task_,
        [future = future_, outputs = outputs_](std::exception_ptr failure) {
          if (failure) {
            future->setErrorIfNeeded(std::move(failure));
          } else {
            future->markCompleted(c10::IValue(outputs));
          }
        });
    queue_->run_in_background();
    return future_;
  }

 private:
  std::shared_ptr<SerialQueue> queue_;
  std::shared_ptr<SerialQueue::Task> task_;
  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

SerialQueue::SerialQueue(std::function<void(const std::exception&)> on_failure)
    : on_failure_(std::move(on_failure)), process_(::getpid()) {}

SerialQueue::~SerialQueue() { close(); }

bool SerialQueue::is_own_process() const { return ::getpid() == process_; }

Work SerialQueue::push(
    std::function<void()> body,
    std::vector<at::Tensor> outputs) {
  auto task = std::make_shared<Task>();
  task->body = std::move(body);
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    tasks_.push_back(task);
    if (wants_worker_) changed_.notify_all();
  }
  return c10::make_intrusive<SerialWork>(
      shared_from_this(), std::move(task), std::move(outputs));
}

bool SerialQueue::is_finished(const Task& task) {
  const std::lock_guard lock(mutex_);
  return task.is_finished;
}

void SerialQueue::wait(const std::shared_ptr<Task>& task) {
  std::unique_lock lock(mutex_);
  ++num_waiting_;
  while (!task->is_finished) {
    if (is_running_) {
      changed_.wait(lock);
    } else {
      run_first(lock);
    }
  }
  --num_waiting_;
  // Other threads' tasks may be left.
  changed_.notify_all();
  if (task->failure) std::rethrow_exception(task->failure);
}

// Called while tasks are left and no thread is running one.
void SerialQueue::run_first(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Task> task = tasks_.front();
  is_running_ = true;
  std::exception_ptr failure = failure_;
  if (!failure) {
    lock.unlock();
    try {
      const at::NoGradGuard no_grad;
      task->body();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      on_failure_(error);
    }
    lock.lock();
    if (failure) failure_ = failure;
  }
  tasks_.pop_front();
  finish(lock, task, failure);
  is_running_ = false;
  changed_.notify_all();
}

void SerialQueue::finish(
    std::unique_lock<std::mutex>& lock,
    const std::shared_ptr<Task>& task,
    std::exception_ptr failure) {
  // The body owns the tensors of the operation.
  task->body = {};
  task->failure = failure;
  task->is_finished = true;
  const auto listener = std::exchange(task->listener, {});
  if (!listener) return;
  lock.unlock();
  listener(std::move(failure));
  lock.lock();
}

void SerialQueue::on_finish(
    const std::shared_ptr<Task>& task,
    std::function<void(std::exception_ptr)> listener) {
  {
    const std::lock_guard lock(mutex_);
    if (!task->is_finished) {
      task->listener = std::move(listener);
      return;
    }
  }
  listener(task->failure);
}

void SerialQueue::run_in_background() {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  wants_worker_ = true;
  if (!worker_.joinable()) worker_ = std::thread([this] { run_worker(); });
  changed_.notify_all();
}

void SerialQueue::run_worker() {
  std::unique_lock lock(mutex_);
  while (!is_closed_) {
    if (tasks_.empty()) wants_worker_ = false;
    if (!wants_worker_ || is_running_ || num_waiting_ > 0) {
      changed_.wait(lock);
    } else {
      run_first(lock);
    }
  }
}

void SerialQueue::close() {
  std::unique_lock lock(mutex_);
  if (is_closed_) return;
  is_closed_ = true;
  if (!failure_) {
    failure_ = std::make_exception_ptr(
        std::runtime_error("the connection was closed"));
  }
  while (is_running_) changed_.wait(lock);
  while (!tasks_.empty()) run_first(lock);
  changed_.notify_all();
  lock.unlock();
  if (worker_.joinable()) worker_.join();
}

}  // namespace accelerate::detail
