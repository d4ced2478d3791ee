#include "comm/transport/shared_memory/shared_memory_connection.h"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "comm/transport/shared_memory/collectives.h"
#include "comm/transport/shared_memory/messages.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;
using Operations = std::vector<std::shared_ptr<Operation>>;

std::byte* memory_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

struct Tensors {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> inputs;
};

class SharedMemoryWork final : public c10d::Work {
 public:
  SharedMemoryWork(
      std::shared_ptr<ProgressEngine> engine,
      Operations operations,
      std::shared_ptr<const Tensors> tensors)
      : engine_(std::move(engine)),
        operations_(std::move(operations)),
        tensors_(std::move(tensors)) {}

  bool isCompleted() override {
    for (const auto& operation : operations_) {
      if (!operation->is_finished()) return false;
    }
    return true;
  }
  [[nodiscard]] bool isSuccess() const override {
    for (const auto& operation : operations_) {
      if (!operation->is_finished() || operation->has_failed()) return false;
    }
    return true;
  }
  bool wait(milliseconds timeout) override {
    for (const auto& operation : operations_)
      engine_->wait(*operation, timeout);
    return true;
  }
  std::vector<at::Tensor> result() override { return tensors_->outputs; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    auto rest = std::make_shared<std::atomic<std::size_t>>(operations_.size());
    for (const auto& operation : operations_) {
      engine_->on_finish(
          *operation, [rest, future = future_, operation, tensors = tensors_] {
            if (operation->has_failed()) {
              future->setErrorIfNeeded(std::make_exception_ptr(
                  std::runtime_error(operation->failure())));
            } else if (rest->fetch_sub(1) == 1) {
              future->markCompleted(c10::IValue(tensors->outputs));
            }
          });
    }
    engine_->run_in_background();
    return future_;
  }

 private:
  std::shared_ptr<ProgressEngine> engine_;
  Operations operations_;
  std::shared_ptr<const Tensors> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Messages between ranks that a program tags have tags of 32 bits.
constexpr std::int64_t kCollectiveTags = std::int64_t{1} << 32U;

class SharedMemoryConnection final : public Connection {
 public:
  explicit SharedMemoryConnection(std::shared_ptr<ProgressEngine> engine)
      : Connection(engine->rank(), engine->size()),
        engine_(std::move(engine)) {}
  ~SharedMemoryConnection() override { engine_->close(); }

  [[nodiscard]] const TransportFacts& facts() const override {
    return shared_memory_facts();
  }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return begin(
        make_all_reduce(
            memory_of(tensor),
            tensor.nbytes(),
            combination_of(tensor.scalar_type(), op),
            size()),
        tensor);
  }

  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    return begin(
        make_reduce(
            memory_of(tensor),
            tensor.nbytes(),
            combination_of(tensor.scalar_type(), op),
            dst),
        tensor);
  }

  Work broadcast(const at::Tensor& tensor, int src) override {
    return begin(
        make_broadcast(memory_of(tensor), tensor.nbytes(), src), tensor);
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return begin(
        make_all_gather(memory_of(output), memory_of(input), input.nbytes()),
        output,
        input);
  }

  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    return begin(
        make_reduce_scatter(
            memory_of(output),
            memory_of(input),
            output.nbytes(),
            combination_of(input.scalar_type(), op)),
        output,
        input);
  }

  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    const std::int64_t tag = take_tag();
    if (rank() != dst) {
      return begin_all(
          {message(Message::Direction::send, dst, tag, input)}, {}, {input});
    }
    Operations receives;
    for (int peer = 0; peer < size(); ++peer) {
      const at::Tensor& output = outputs[static_cast<std::size_t>(peer)];
      if (peer == rank()) {
        output.detach().copy_(input);
      } else {
        receives.push_back(
            message(Message::Direction::receive, peer, tag, output));
      }
    }
    return begin_all(std::move(receives), outputs, {input});
  }

  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    const std::int64_t tag = take_tag();
    if (rank() != src) {
      return begin_all(
          {message(Message::Direction::receive, src, tag, output)},
          {output},
          {});
    }
    Operations sends;
    for (int peer = 0; peer < size(); ++peer) {
      const at::Tensor& input = inputs[static_cast<std::size_t>(peer)];
      if (peer == rank()) {
        output.detach().copy_(input);
      } else {
        sends.push_back(message(Message::Direction::send, peer, tag, input));
      }
    }
    return begin_all(std::move(sends), {output}, inputs);
  }

  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    const std::int64_t tag = take_tag();
    const std::vector<at::Tensor> from = parts_of(input, input_sizes);
    const std::vector<at::Tensor> to = parts_of(output, output_sizes);
    Operations messages;
    // Each rank begins with its neighbour, so that not all send to rank 0.
    for (int distance = 1; distance < size(); ++distance) {
      const int dst = (rank() + distance) % size();
      const int src = (rank() + size() - distance) % size();
      messages.push_back(message(
          Message::Direction::send,
          dst,
          tag,
          from[static_cast<std::size_t>(dst)]));
      messages.push_back(message(
          Message::Direction::receive,
          src,
          tag,
          to[static_cast<std::size_t>(src)]));
    }
    const auto own = static_cast<std::size_t>(rank());
    to[own].copy_(from[own]);
    return begin_all(std::move(messages), {output}, {input});
  }

  Work barrier() override { return begin_all({make_barrier()}, {}, {}); }

  void monitored_barrier(milliseconds timeout) override {
    const std::shared_ptr<Operation> barrier = make_barrier();
    engine_->begin(barrier);
    engine_->wait(*barrier, timeout);
  }

  Work send(const at::Tensor& tensor, int dst, int tag) override {
    return begin_all(
        {message(Message::Direction::send, dst, tag, tensor)}, {}, {tensor});
  }

  Work receive(const at::Tensor& tensor, int src, int tag) override {
    return begin_all(
        {message(Message::Direction::receive, src, tag, tensor)}, {tensor}, {});
  }

  void run_in_background() override { engine_->run_in_background(); }

 private:
  static std::shared_ptr<Message> message(
      Message::Direction direction,
      int peer,
      std::int64_t tag,
      const at::Tensor& tensor) {
    return std::make_shared<Message>(
        direction, peer, tag, memory_of(tensor), tensor.nbytes());
  }

  std::vector<at::Tensor> parts_of(
      const at::Tensor& tensor,
      const std::vector<std::int64_t>& sizes) const {
    std::vector<at::Tensor> parts;
    std::int64_t begin = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const std::int64_t length = sizes.empty()
          ? tensor.numel() / size()
          : sizes[static_cast<std::size_t>(peer)];
      parts.push_back(tensor.narrow(0, begin, length));
      begin += length;
    }
    return parts;
  }

  // Equal on all ranks, which begin these collectives in the same order.
  std::int64_t take_tag() { return kCollectiveTags + num_exchanges_++; }

  Work begin(
      std::shared_ptr<Operation> operation,
      const at::Tensor& output,
      const at::Tensor& input = {}) {
    std::vector<at::Tensor> inputs;
    if (input.defined()) inputs.push_back(input);
    return begin_all({std::move(operation)}, {output}, std::move(inputs));
  }

  Work begin_all(
      Operations operations,
      std::vector<at::Tensor> outputs,
      std::vector<at::Tensor> inputs) {
    const auto tensors = std::make_shared<const Tensors>(
        Tensors{.outputs = std::move(outputs), .inputs = std::move(inputs)});
    for (const auto& operation : operations) {
      operation->keep(tensors);
      engine_->begin(operation);
    }
    return c10::make_intrusive<SharedMemoryWork>(
        engine_, std::move(operations), tensors);
  }

  std::shared_ptr<ProgressEngine> engine_;
  std::atomic<std::int64_t> num_exchanges_{0};
};

bool shared_memory_can_reduce(at::ScalarType dtype, ReduceOp op) {
  return combination_of(dtype, op).function != nullptr;
}

}  // namespace

const TransportFacts& shared_memory_facts() {
  static const TransportFacts facts{
      .name = "shared_memory",
      .device_types = {c10::DeviceType::CPU},
      .can_reduce = &shared_memory_can_reduce,
      .point_to_point = PointToPoint::tagged,
      .is_thread_safe = true,
      .compares_calls = true};
  return facts;
}

std::shared_ptr<Connection> make_shared_memory_connection(
    std::shared_ptr<ProgressEngine> engine) {
  return std::make_shared<SharedMemoryConnection>(std::move(engine));
}

}  // namespace accelerate::detail
