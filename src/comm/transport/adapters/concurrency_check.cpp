#include <mutex>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/transport/adapters/adapters.h"
#include "comm/transport/adapters/connection_adapter.h"

namespace accelerate::detail {

namespace {

class OneThreadConnection final : public ConnectionAdapter {
 public:
  explicit OneThreadConnection(std::shared_ptr<Connection> inner)
      : ConnectionAdapter(std::move(inner)) {}

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    const auto call = begin_call();
    return inner().all_reduce(tensor, op);
  }
  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    const auto call = begin_call();
    return inner().reduce(tensor, op, dst);
  }
  Work broadcast(const at::Tensor& tensor, int src) override {
    const auto call = begin_call();
    return inner().broadcast(tensor, src);
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    const auto call = begin_call();
    return inner().all_gather(output, input);
  }
  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    const auto call = begin_call();
    return inner().gather(outputs, input, dst);
  }
  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    const auto call = begin_call();
    return inner().reduce_scatter(output, input, op);
  }
  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    const auto call = begin_call();
    return inner().scatter(output, inputs, src);
  }
  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    const auto call = begin_call();
    return inner().all_to_all(output, input, output_sizes, input_sizes);
  }
  Work barrier() override {
    const auto call = begin_call();
    return inner().barrier();
  }
  void monitored_barrier(std::chrono::milliseconds timeout) override {
    const auto call = begin_call();
    inner().monitored_barrier(timeout);
  }
  Work send(const at::Tensor& tensor, int dst, int tag) override {
    const auto call = begin_call();
    return inner().send(tensor, dst, tag);
  }
  Work receive(const at::Tensor& tensor, int src, int tag) override {
    const auto call = begin_call();
    return inner().receive(tensor, src, tag);
  }
  BegunMessages exchange(
      const std::vector<PeerMessage>& sends,
      const std::vector<PeerMessage>& receives) override {
    const auto call = begin_call();
    return inner().exchange(sends, receives);
  }

 private:
  std::unique_lock<std::mutex> begin_call() {
    std::unique_lock call(mutex_, std::try_to_lock);
    if (call.owns_lock()) return call;
    throw DistributedError(format(
        "[comm] two threads of rank {} use one group at once, which the "
        "transport \"{}\" does not support; make a group per thread with "
        "new_group()",
        rank(),
        facts().name));
  }

  std::mutex mutex_;
};

}  // namespace

std::shared_ptr<Connection> refuse_concurrent_calls(
    std::shared_ptr<Connection> connection) {
  if (connection->facts().is_thread_safe) return connection;
  return std::make_shared<OneThreadConnection>(std::move(connection));
}

}  // namespace accelerate::detail
