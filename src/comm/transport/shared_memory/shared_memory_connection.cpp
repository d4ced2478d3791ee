#include "comm/transport/shared_memory/shared_memory_connection.h"

#include <cstddef>
#include <stdexcept>
#include <utility>

#include <ATen/core/ivalue.h>

#include "comm/transport/shared_memory/operations/messages.h"
#include "comm/transport/shared_memory/shared_tensor.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;

HostMemory memory_of(const at::Tensor& tensor) {
  return host_tensor(tensor).memory;
}

std::vector<HostMemory> memory_of(const std::vector<at::Tensor>& tensors) {
  std::vector<HostMemory> all;
  for (const at::Tensor& tensor : tensors) all.push_back(memory_of(tensor));
  return all;
}

std::shared_ptr<Message> message(
    Message::Direction direction,
    int peer,
    std::int64_t tag,
    const at::Tensor& tensor) {
  return std::make_shared<Message>(direction, peer, tag, memory_of(tensor));
}

bool shared_memory_can_reduce(at::ScalarType dtype, ReduceOp op) {
  return combination_of(dtype, op).function != nullptr;
}

struct Tensors {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> inputs;
};

class SharedMemoryWork final : public c10d::Work {
 public:
  SharedMemoryWork(
      std::shared_ptr<ProgressEngine> engine,
      std::shared_ptr<Operation> operation,
      std::shared_ptr<const Tensors> tensors)
      : engine_(std::move(engine)),
        operation_(std::move(operation)),
        tensors_(std::move(tensors)) {}

  bool isCompleted() override { return engine_->test(*operation_); }
  [[nodiscard]] bool isSuccess() const override {
    return operation_->is_finished() && !operation_->has_failed();
  }
  bool wait(milliseconds timeout) override {
    engine_->wait(*operation_, timeout);
    return true;
  }
  std::vector<at::Tensor> result() override { return tensors_->outputs; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    engine_->on_finish(
        *operation_,
        [future = future_, operation = operation_, tensors = tensors_] {
          if (operation->has_failed()) {
            future->setErrorIfNeeded(std::make_exception_ptr(
                std::runtime_error(operation->failure())));
          } else {
            future->markCompleted(c10::IValue(tensors->outputs));
          }
        });
    engine_->run_in_background();
    return future_;
  }

 private:
  std::shared_ptr<ProgressEngine> engine_;
  std::shared_ptr<Operation> operation_;
  std::shared_ptr<const Tensors> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace

const TransportFacts& shared_memory_facts() {
  static const TransportFacts facts{
      .name = "shared_memory",
      .device_types = {c10::DeviceType::CPU},
      .can_reduce = &shared_memory_can_reduce,
      .point_to_point = PointToPoint::tagged,
      .is_thread_safe = true,
      .compares_calls = true,
      .takes_views = true};
  return facts;
}

HostTensor host_tensor(const at::Tensor& tensor) {
  return {
      static_cast<std::byte*>(tensor.mutable_data_ptr()),
      tensor.scalar_type(),
      {tensor.sizes().data(), tensor.sizes().size()},
      {tensor.strides().data(), tensor.strides().size()}};
}

SharedMemoryConnection::SharedMemoryConnection(
    std::shared_ptr<ProgressEngine> engine)
    : Connection(engine->rank(), engine->size()), engine_(std::move(engine)) {}

SharedMemoryConnection::~SharedMemoryConnection() {
  if (engine_->is_own_process()) {
    engine_->close();
  } else {
    new std::shared_ptr<ProgressEngine>(std::move(engine_));
  }
}

const TransportFacts& SharedMemoryConnection::facts() const {
  return shared_memory_facts();
}

Work SharedMemoryConnection::begin(
    std::shared_ptr<Operation> operation,
    std::vector<at::Tensor> outputs,
    std::vector<at::Tensor> inputs) {
  auto tensors = std::make_shared<const Tensors>(
      Tensors{.outputs = std::move(outputs), .inputs = std::move(inputs)});
  operation->keep(tensors);
  engine_->begin(operation);
  return c10::make_intrusive<SharedMemoryWork>(
      engine_, std::move(operation), std::move(tensors));
}

Work SharedMemoryConnection::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  return begin(
      make_all_reduce(
          host_tensor(tensor),
          combination_of(tensor.scalar_type(), op),
          size()),
      {tensor});
}

Work SharedMemoryConnection::reduce(
    const at::Tensor& tensor,
    ReduceOp op,
    int dst) {
  return begin(
      make_reduce(
          host_tensor(tensor), combination_of(tensor.scalar_type(), op), dst),
      {tensor});
}

Work SharedMemoryConnection::broadcast(const at::Tensor& tensor, int src) {
  return begin(make_broadcast(host_tensor(tensor), src), {tensor});
}

Work SharedMemoryConnection::all_gather(
    const at::Tensor& output,
    const at::Tensor& input) {
  return begin(
      make_all_gather(memory_of(output), host_tensor(input)),
      {output},
      {input});
}

Work SharedMemoryConnection::reduce_scatter(
    const at::Tensor& output,
    const at::Tensor& input,
    ReduceOp op) {
  return begin(
      make_reduce_scatter(
          memory_of(output),
          host_tensor(input),
          combination_of(input.scalar_type(), op)),
      {output},
      {input});
}

Work SharedMemoryConnection::gather(
    const std::vector<at::Tensor>& outputs,
    const at::Tensor& input,
    int dst) {
  return begin(
      make_gather(memory_of(outputs), host_tensor(input), dst),
      outputs,
      {input});
}

Work SharedMemoryConnection::scatter(
    const at::Tensor& output,
    const std::vector<at::Tensor>& inputs,
    int src) {
  return begin(
      make_scatter(host_tensor(output), memory_of(inputs), src),
      {output},
      inputs);
}

Work SharedMemoryConnection::all_to_all(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::vector<std::int64_t>& output_sizes,
    const std::vector<std::int64_t>& input_sizes) {
  return begin(
      make_all_to_all(
          host_tensor(output),
          host_tensor(input),
          bytes_of_parts(output, output_sizes),
          bytes_of_parts(input, input_sizes)),
      {output},
      {input});
}

// Returns the size of each rank's part.
std::vector<std::size_t> SharedMemoryConnection::bytes_of_parts(
    const at::Tensor& tensor,
    const std::vector<std::int64_t>& sizes) const {
  if (sizes.empty()) {
    const auto count = static_cast<std::size_t>(size());
    return std::vector<std::size_t>(count, tensor.nbytes() / count);
  }
  std::vector<std::size_t> bytes;
  for (const std::int64_t count : sizes)
    bytes.push_back(static_cast<std::size_t>(count) * tensor.element_size());
  return bytes;
}

Work SharedMemoryConnection::barrier() { return begin(make_barrier(), {}); }

void SharedMemoryConnection::monitored_barrier(milliseconds timeout) {
  const std::shared_ptr<Operation> barrier = make_barrier();
  engine_->begin(barrier);
  engine_->wait(*barrier, timeout);
}

void SharedMemoryConnection::agree(const CollectiveStamp& stamp) {
  const std::shared_ptr<Operation> barrier = make_barrier(stamp);
  engine_->begin(barrier);
  engine_->wait(*barrier);
}

Work SharedMemoryConnection::send(const at::Tensor& tensor, int dst, int tag) {
  return begin(
      message(Message::Direction::send, dst, tag, tensor), {}, {tensor});
}

Work SharedMemoryConnection::receive(
    const at::Tensor& tensor,
    int src,
    int tag) {
  return begin(
      message(Message::Direction::receive, src, tag, tensor), {tensor});
}

at::Tensor SharedMemoryConnection::reducible_memory(std::int64_t bytes) {
  return shared_tensor(*engine_, bytes);
}

}  // namespace accelerate::detail
