#include "comm/transport/works.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

namespace accelerate::detail {

namespace {

using Future = c10::intrusive_ptr<c10::ivalue::Future>;

// A future of tensors; a waiter's streams are synchronized with accelerator
// tensors.
Future future_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    const c10::Device device = tensor.device();
    if (!device.is_cpu() && std::ranges::find(devices, device) == devices.end())
      devices.push_back(device);
  }
  return c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::move(devices));
}

class CompletedWork final : public c10d::Work {
 public:
  explicit CompletedWork(std::vector<at::Tensor> tensors)
      : tensors_(std::move(tensors)) {}

  bool isCompleted() override { return true; }
  [[nodiscard]] bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return tensors_; }
  Future getFuture() override {
    Future future = future_of(tensors_);
    future->markCompleted(c10::IValue(tensors_));
    return future;
  }

 private:
  std::vector<at::Tensor> tensors_;
};

class WorkThen final : public c10d::Work {
 public:
  WorkThen(
      detail::Work work,
      std::function<void()> finish,
      std::vector<at::Tensor> tensors)
      : rest_(std::make_shared<Rest>()),
        tensors_(std::move(tensors)),
        work_(std::move(work)) {
    rest_->finish = std::move(finish);
  }

  bool isCompleted() override { return work_->isCompleted(); }
  [[nodiscard]] bool isSuccess() const override { return work_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool is_done = work_->wait(timeout);
    rest_->run();
    return is_done;
  }
  std::vector<at::Tensor> result() override { return tensors_; }
  Future getFuture() override {
    Future future = future_of(tensors_);
    work_->getFuture()->addCallback(
        [future, rest = rest_, tensors = tensors_](c10::ivalue::Future& done) {
          if (done.hasError()) {
            future->setError(done.exception_ptr());
            return;
          }
          try {
            rest->run();
          } catch (...) {
            future->setError(std::current_exception());
            return;
          }
          future->markCompleted(c10::IValue(tensors));
        });
    return future;
  }

 private:
  struct Rest {
    std::once_flag once;
    std::function<void()> finish;

    void run() {
      std::call_once(once, [this] {
        const at::NoGradGuard no_grad;
        finish();
      });
    }
  };

  std::shared_ptr<Rest> rest_;
  std::vector<at::Tensor> tensors_;
  // Destroyed first: a transport may still use the other members.
  detail::Work work_;
};

class AllOf final : public c10d::Work {
 public:
  AllOf(std::vector<detail::Work> works, std::exception_ptr failure)
      : works_(std::move(works)), failure_(std::move(failure)) {}

  bool isCompleted() override {
    return failure_ == nullptr &&
        std::ranges::all_of(works_, [](const detail::Work& each) {
             return each->isCompleted();
           });
  }
  bool wait(std::chrono::milliseconds timeout) override {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    for (const detail::Work& each : works_) each->wait(timeout);
    return true;
  }

 private:
  std::vector<detail::Work> works_;
  std::exception_ptr failure_;
};

}  // namespace

Work completed_work(std::vector<at::Tensor> tensors) {
  return c10::make_intrusive<CompletedWork>(std::move(tensors));
}

Work work_then(
    Work work,
    std::function<void()> finish,
    std::vector<at::Tensor> tensors) {
  return c10::make_intrusive<WorkThen>(
      std::move(work), std::move(finish), std::move(tensors));
}

Work all_of(std::vector<Work> works, std::exception_ptr failure) {
  if (works.empty() && failure == nullptr) return {};
  if (works.size() == 1 && failure == nullptr) return std::move(works.front());
  return c10::make_intrusive<AllOf>(std::move(works), std::move(failure));
}

}  // namespace accelerate::detail
