#include "comm/transport/adapters.h"

#include <stdexcept>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/text.h"
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

// The operations that c10d::Reducer and c10d::broadcast_coalesced call.
class ConnectionBackend final : public c10d::Backend {
 public:
  explicit ConnectionBackend(std::shared_ptr<Connection> connection)
      : Backend(connection->rank(), connection->size()),
        connection_(std::move(connection)) {}

  const std::string getBackendName() const override {
    return connection_->facts().name;
  }

  Work allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    return connection_->all_reduce(only(tensors), from_c10d(options.reduceOp));
  }

  Work broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    return connection_->broadcast(
        only(tensors), static_cast<int>(options.rootRank));
  }

  Work barrier(const c10d::BarrierOptions&) override {
    return connection_->barrier();
  }

 private:
  static const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
    if (tensors.size() != 1) {
      throw std::invalid_argument(format(
          "a transport takes one tensor at a time, not {}", tensors.size()));
    }
    return tensors.front();
  }

  std::shared_ptr<Connection> connection_;
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
    const c10::intrusive_ptr<c10d::Store>& store) {
  using c10d::ProcessGroup;
  c10::intrusive_ptr<c10d::Backend> backend = connection->c10d_backend();
  if (!backend) backend = c10::make_intrusive<ConnectionBackend>(connection);
  const auto type = ProcessGroup::strToBackendType(backend->getBackendName());
  auto group = c10::make_intrusive<ProcessGroup>(
      c10::make_intrusive<c10d::PrefixStore>("process_group", store),
      connection->rank(),
      connection->size());
  for (const c10::DeviceType device : connection->facts().device_types)
    group->setBackend(device, type, backend);
  group->setDefaultBackend(type);
  return group;
}

}  // namespace accelerate::detail
