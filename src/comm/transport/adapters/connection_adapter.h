#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Forwards every call; adapters override what they change.
class ConnectionAdapter : public Connection {
 public:
  explicit ConnectionAdapter(std::shared_ptr<Connection> inner)
      : Connection(inner->rank(), inner->size()),
        facts_(inner->facts()),
        inner_(std::move(inner)) {}

  [[nodiscard]] const TransportFacts& facts() const override { return facts_; }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return inner_->all_reduce(tensor, op);
  }
  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    return inner_->reduce(tensor, op, dst);
  }
  Work broadcast(const at::Tensor& tensor, int src) override {
    return inner_->broadcast(tensor, src);
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return inner_->all_gather(output, input);
  }
  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    return inner_->gather(outputs, input, dst);
  }
  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    return inner_->reduce_scatter(output, input, op);
  }
  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    return inner_->scatter(output, inputs, src);
  }
  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    return inner_->all_to_all(output, input, output_sizes, input_sizes);
  }
  Work barrier() override { return inner_->barrier(); }
  void monitored_barrier(std::chrono::milliseconds timeout) override {
    inner_->monitored_barrier(timeout);
  }
  Work send(const at::Tensor& tensor, int dst, int tag) override {
    return inner_->send(tensor, dst, tag);
  }
  Work receive(const at::Tensor& tensor, int src, int tag) override {
    return inner_->receive(tensor, src, tag);
  }
  BegunMessages exchange(
      const std::vector<PeerMessage>& sends,
      const std::vector<PeerMessage>& receives) override {
    return facts_.has_exchange ? inner_->exchange(sends, receives)
                               : begin_each(sends, receives);
  }
  void together(const std::function<void()>& begin_all) override {
    inner_->together(begin_all);
  }
  void run_in_background() override { inner_->run_in_background(); }
  void require_intact() override { inner_->require_intact(); }
  void abort() noexcept override { inner_->abort(); }
  [[nodiscard]] at::Tensor reducible_memory(std::int64_t bytes) override {
    return inner_->reducible_memory(bytes);
  }

 protected:
  [[nodiscard]] Connection& inner() const { return *inner_; }
  /// The inner connection's facts; an adapter changes the ones it improves.
  TransportFacts facts_;

 private:
  std::shared_ptr<Connection> inner_;
};

}  // namespace accelerate::detail
