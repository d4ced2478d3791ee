#include "comm/transport/adapters/adapters.h"

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/text/text.h"
#include "comm/transport/works.h"

namespace accelerate::detail {

namespace {

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::mean;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::bit_and;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bit_or;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bit_xor;
    default:
      throw std::invalid_argument("no transport reduces in this way");
  }
}

// A collective that is noted on the board until it has ended.
class NotedWork final : public c10d::Work {
 public:
  NotedWork(
      detail::Work work,
      std::shared_ptr<NotedCalls> calls,
      std::uint64_t number)
      : work_(std::move(work)), calls_(std::move(calls)), number_(number) {}

  bool isCompleted() override { return work_->isCompleted(); }
  [[nodiscard]] bool isSuccess() const override { return work_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      const bool is_done = work_->wait(timeout);
      calls_->end(number_);
      return is_done;
    } catch (...) {
      calls_->end(number_);
      throw;
    }
  }
  std::vector<at::Tensor> result() override { return work_->result(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = work_->getFuture();
    future->addCallback([calls = calls_, number = number_](
                            c10::ivalue::Future&) { calls->end(number); });
    return future;
  }

 private:
  detail::Work work_;
  std::shared_ptr<NotedCalls> calls_;
  std::uint64_t number_;
};

// The operations that hooks of buckets and c10d::broadcast_coalesced call.
class ConnectionBackend final : public c10d::Backend {
 public:
  ConnectionBackend(
      std::shared_ptr<Connection> connection,
      std::shared_ptr<NotedCalls> calls)
      : Backend(connection->rank(), connection->size()),
        connection_(std::move(connection)),
        calls_(std::move(calls)) {}

  const std::string getBackendName() const override {
    return connection_->facts().name;
  }

  Work allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = only(tensors);
    return noted("all_reduce", tensor, -1, [&] {
      return connection_->all_reduce(tensor, from_c10d(options.reduceOp));
    });
  }

  Work broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = only(tensors);
    const auto root = static_cast<int>(options.rootRank);
    return noted("broadcast", tensor, root, [&] {
      return connection_->broadcast(tensor, root);
    });
  }

  Work barrier(const c10d::BarrierOptions&) override {
    return connection_->barrier();
  }

 private:
  static const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
    if (tensors.size() != 1) {
      throw std::invalid_argument(format(
          "a transport must get one tensor at a time, but got {}",
          tensors.size()));
    }
    return tensors.front();
  }

  template <class Begin>
  Work noted(
      const char* operation,
      const at::Tensor& tensor,
      int root,
      Begin&& begin) const {
    if (calls_ == nullptr) return begin();
    const at::IntArrayRef sizes = tensor.sizes();
    const std::uint64_t number = calls_->begin(
        {.operation = operation,
         .dtype = c10::toString(tensor.scalar_type()),
         .shape = {sizes.data(), sizes.size()},
         .root = root < 0 ? root : calls_->rank_in_world(root)});
    try {
      return c10::make_intrusive<NotedWork>(begin(), calls_, number);
    } catch (...) {
      calls_->end(number);
      throw;
    }
  }

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<NotedCalls> calls_;
};

}  // namespace

std::shared_ptr<Connection> adapted(std::shared_ptr<Connection> connection) {
  connection = refuse_concurrent_calls(std::move(connection));
  if (connection->facts().point_to_point == PointToPoint::ordered)
    connection = match_tags(std::move(connection));
  return stage_through_host(widen_dtypes(std::move(connection)));
}

c10::intrusive_ptr<c10d::ProcessGroup> as_process_group(
    const std::shared_ptr<Connection>& connection,
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::shared_ptr<NotedCalls>& calls) {
  using c10d::ProcessGroup;
  const c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<ConnectionBackend>(connection, calls);
  const auto type = ProcessGroup::strToBackendType(backend->getBackendName());
  auto group = c10::make_intrusive<ProcessGroup>(
      c10::make_intrusive<c10d::PrefixStore>("process_group", store),
      connection->rank(),
      connection->size());
  for (const c10::DeviceType device : connection->facts().device_types)
    group->setBackend(device, type, backend);
  // Accelerator tensors are staged through host memory if the transport lacks
  // that device.
  const auto accelerator = at::accelerator::getAccelerator(/*checked=*/false);
  if (accelerator && !connection->facts().has_device(*accelerator))
    group->setBackend(*accelerator, type, backend);
  group->setDefaultBackend(type);
  return group;
}

}  // namespace accelerate::detail
