#include "support/traffic_counter.h"

#include <utility>

#include "comm/transport/adapters/connection_adapter.h"

namespace accelerate::detail {

namespace {

class CountedWork final : public c10d::Work {
 public:
  CountedWork(
      detail::Work work,
      std::string operation,
      std::shared_ptr<TrafficCounter> counter)
      : work_(std::move(work)),
        operation_(std::move(operation)),
        counter_(std::move(counter)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  [[nodiscard]] bool isSuccess() const override { return work_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool is_done = work_->wait(timeout);
    counter_->note_finished(operation_);
    return is_done;
  }
  std::vector<at::Tensor> result() override { return work_->result(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return work_->getFuture();
  }

 private:
  detail::Work work_;
  std::string operation_;
  std::shared_ptr<TrafficCounter> counter_;
};

class CountedConnection final : public ConnectionAdapter {
 public:
  CountedConnection(
      std::shared_ptr<Connection> inner,
      std::shared_ptr<TrafficCounter> counter)
      : ConnectionAdapter(std::move(inner)), counter_(std::move(counter)) {}

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return counted(
        "all_reduce", 2 * share(tensor), inner().all_reduce(tensor, op));
  }
  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    return counted("reduce", share(tensor), inner().reduce(tensor, op, dst));
  }
  Work broadcast(const at::Tensor& tensor, int src) override {
    return counted(
        "broadcast",
        rank() == src ? bytes_of(tensor) : 0,
        inner().broadcast(tensor, src));
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return counted(
        "all_gather",
        bytes_of(input) * others(),
        inner().all_gather(output, input));
  }
  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    return counted(
        "gather",
        rank() == dst ? 0 : bytes_of(input),
        inner().gather(outputs, input, dst));
  }
  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    return counted(
        "reduce_scatter",
        share(input),
        inner().reduce_scatter(output, input, op));
  }
  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    return counted(
        "scatter",
        rank() == src ? bytes_of(output) * others() : 0,
        inner().scatter(output, inputs, src));
  }
  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    const double own = input_sizes.empty()
        ? bytes_of(input) / size()
        : static_cast<double>(
              input_sizes[static_cast<std::size_t>(rank())] *
              input.element_size());
    return counted(
        "all_to_all",
        bytes_of(input) - own,
        inner().all_to_all(output, input, output_sizes, input_sizes));
  }
  Work barrier() override { return counted("barrier", 0, inner().barrier()); }
  Work send(const at::Tensor& tensor, int dst, int tag) override {
    return counted("send", bytes_of(tensor), inner().send(tensor, dst, tag));
  }

 private:
  static double bytes_of(const at::Tensor& tensor) {
    return static_cast<double>(tensor.nbytes());
  }
  [[nodiscard]] double others() const { return size() - 1; }
  [[nodiscard]] double share(const at::Tensor& tensor) const {
    return bytes_of(tensor) * others() / size();
  }

  Work counted(const std::string& operation, double bytes, Work work) {
    counter_->note_begun(operation, bytes);
    return c10::make_intrusive<CountedWork>(
        std::move(work), operation, counter_);
  }

  std::shared_ptr<TrafficCounter> counter_;
};

class CountingTransport final : public Transport {
 public:
  CountingTransport(
      std::shared_ptr<Transport> inner,
      std::shared_ptr<TrafficCounter> counter)
      : inner_(std::move(inner)), counter_(std::move(counter)) {}

  [[nodiscard]] const TransportFacts& facts() const override {
    return inner_->facts();
  }
  [[nodiscard]] std::shared_ptr<Connection> connect(
      const ConnectRequest& request) override {
    return std::make_shared<CountedConnection>(
        inner_->connect(request), counter_);
  }
  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    return inner_->describe_failure(error);
  }

 private:
  std::shared_ptr<Transport> inner_;
  std::shared_ptr<TrafficCounter> counter_;
};

}  // namespace

TrafficCounter::Count TrafficCounter::of(const std::string& operation) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(operation);
  return found == counts_.end() ? Count() : found->second;
}

TrafficCounter::Count TrafficCounter::total() const {
  const std::lock_guard lock(mutex_);
  Count sum;
  for (const auto& [operation, count] : counts_) {
    sum.begun += count.begun;
    sum.finished += count.finished;
    sum.bytes += count.bytes;
  }
  return sum;
}

void TrafficCounter::reset() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
}

void TrafficCounter::note_begun(const std::string& operation, double bytes) {
  const std::lock_guard lock(mutex_);
  Count& count = counts_[operation];
  ++count.begun;
  count.bytes += bytes;
}

void TrafficCounter::note_finished(const std::string& operation) {
  const std::lock_guard lock(mutex_);
  ++counts_[operation].finished;
}

std::shared_ptr<Transport> make_counting_transport(
    std::shared_ptr<Transport> inner,
    std::shared_ptr<TrafficCounter> counter) {
  return std::make_shared<CountingTransport>(
      std::move(inner), std::move(counter));
}

}  // namespace accelerate::detail
