#include "comm/transport/adapters/device_routing.h"

#include <functional>
#include <utility>

#include "base/text/text.h"
#include "comm/transport/adapters/adapters.h"

namespace accelerate::detail {

namespace {

// Both connections are adapted, so that each takes any dense tensor; the host's
// stages what the device's cannot do.
class DeviceRouting final : public Connection {
 public:
  DeviceRouting(
      std::shared_ptr<Connection> host,
      std::shared_ptr<Connection> device)
      : Connection(host->rank(), host->size()),
        host_(adapted(std::move(host))),
        device_facts_(device->facts()),
        device_(adapted(std::move(device))),
        facts_(host_->facts()) {
    facts_.name = format("{}+{}", host_->facts().name, device_facts_.name);
    for (const c10::DeviceType type : device_facts_.device_types)
      facts_.device_types.push_back(type);
    facts_.compares_calls = false;
    facts_.takes_views = true;
    facts_.has_exchange = device_facts_.has_exchange;
  }

  [[nodiscard]] const TransportFacts& facts() const override { return facts_; }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return reducer_of(tensor, op).all_reduce(tensor, op);
  }
  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    return reducer_of(tensor, op).reduce(tensor, op, dst);
  }
  Work broadcast(const at::Tensor& tensor, int src) override {
    return of(tensor).broadcast(tensor, src);
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return of(input).all_gather(output, input);
  }
  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    return of(input).gather(outputs, input, dst);
  }
  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    return reducer_of(input, op).reduce_scatter(output, input, op);
  }
  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    std::vector<at::Tensor> alike;
    for (const at::Tensor& input : inputs)
      alike.push_back(input.to(output.device()));
    return of(output).scatter(output, alike, src);
  }
  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    return of(input).all_to_all(output, input, output_sizes, input_sizes);
  }
  // Ranks wait for each other on the host, not for their devices.
  Work barrier() override { return host_->barrier(); }
  void monitored_barrier(std::chrono::milliseconds timeout) override {
    host_->monitored_barrier(timeout);
  }
  Work send(const at::Tensor& tensor, int dst, int tag) override {
    return messages_of(tensor).send(tensor, dst, tag);
  }
  Work receive(const at::Tensor& tensor, int src, int tag) override {
    return messages_of(tensor).receive(tensor, src, tag);
  }
  BegunMessages exchange(
      const std::vector<PeerMessage>& sends,
      const std::vector<PeerMessage>& receives) override {
    if (sends.empty() && receives.empty()) return {};
    const PeerMessage& any = sends.empty() ? receives.front() : sends.front();
    return (device_facts_.has_exchange ? of(any.tensor) : *host_)
        .exchange(sends, receives);
  }
  void together(const std::function<void()>& begin_all) override {
    device_->together(begin_all);
  }
  void run_in_background() override { host_->run_in_background(); }
  void require_intact() override {
    host_->require_intact();
    device_->require_intact();
  }
  void abort() noexcept override {
    host_->abort();
    device_->abort();
  }
  [[nodiscard]] at::Tensor reducible_memory(std::int64_t bytes) override {
    return host_->reducible_memory(bytes);
  }

 private:
  [[nodiscard]] Connection& of(const at::Tensor& tensor) const {
    return tensor.is_cpu() ? *host_ : *device_;
  }
  [[nodiscard]] Connection& messages_of(const at::Tensor& tensor) const {
    return device_facts_.point_to_point == PointToPoint::none ? *host_
                                                              : of(tensor);
  }
  // The adapters widen dtypes, but add no operations.
  [[nodiscard]] Connection& reducer_of(const at::Tensor& tensor, ReduceOp op)
      const {
    return device_facts_.can_reduce(at::kLong, op) ||
            device_facts_.can_reduce(at::kDouble, op)
        ? of(tensor)
        : *host_;
  }

  std::shared_ptr<Connection> host_;
  TransportFacts device_facts_;  // before it is adapted
  std::shared_ptr<Connection> device_;
  TransportFacts facts_;
};

}  // namespace

std::shared_ptr<Connection> route_by_device(
    std::shared_ptr<Connection> host,
    std::shared_ptr<Connection> device) {
  return std::make_shared<DeviceRouting>(std::move(host), std::move(device));
}

}  // namespace accelerate::detail
