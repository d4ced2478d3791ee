#include "comm/transport/nccl/nccl_work.h"

#include <utility>

#include <ATen/core/ivalue.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {

namespace {

c10::Stream current_stream_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

NcclOperation::NcclOperation(
    std::shared_ptr<NcclCommunicator> communicator,
    NcclCommunicator::Begun begun,
    std::vector<at::Tensor> memory)
    : communicator_(std::move(communicator)),
      begun_by_(current_stream_of(communicator_->device())),
      number_(begun.number),
      end_(std::move(begun.end)),
      memory_(std::move(memory)) {}

void NcclOperation::join_current_stream() {
  communicator_->throw_if_failed();
  const c10::Stream stream = current_stream_of(communicator_->device());
  end_->block(stream);
  if (stream != begun_by_) return;
  const std::lock_guard lock(mutex_);
  memory_.clear();
}

c10::intrusive_ptr<c10::ivalue::Future> NcclOperation::future_of(
    const std::vector<at::Tensor>& results) {
  communicator_->throw_if_failed();
  const c10::Device device = communicator_->device();
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()),
      std::vector<c10::Device>{device});
  // Waiters' streams wait for the current one as it is when the future is
  // completed.
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream before = guard.exchangeStream(communicator_->stream());
  future->markCompleted(c10::IValue(results));
  guard.exchangeStream(before);
  return future;
}

void NcclOperation::synchronize() {
  join_current_stream();
  end_->synchronize();
  communicator_->throw_if_failed();
}

namespace {

class NcclWork final : public c10d::Work {
 public:
  NcclWork(
      std::shared_ptr<NcclOperation> operation,
      std::vector<at::Tensor> results,
      bool waits_on_host)
      : operation_(std::move(operation)),
        results_(std::move(results)),
        waits_on_host_(waits_on_host) {}

  bool isCompleted() override { return operation_->is_done(); }
  [[nodiscard]] bool isSuccess() const override {
    return operation_->is_done();
  }
  bool wait(std::chrono::milliseconds) override {
    if (waits_on_host_) {
      operation_->synchronize();
    } else {
      operation_->join_current_stream();
    }
    return true;
  }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return operation_->future_of(results_);
  }

 private:
  std::shared_ptr<NcclOperation> operation_;
  std::vector<at::Tensor> results_;
  bool waits_on_host_;
};

}  // namespace

Work work_of(
    std::shared_ptr<NcclOperation> operation,
    std::vector<at::Tensor> results,
    bool waits_on_host) {
  return c10::make_intrusive<NcclWork>(
      std::move(operation), std::move(results), waits_on_host);
}

}  // namespace accelerate::detail
