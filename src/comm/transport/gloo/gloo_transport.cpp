#include "comm/transport/gloo/gloo_transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <accelerate/error.h>

#include "base/machine/network.h"
#include "base/process/pipe_signal_block.h"
#include "base/text/text.h"
#include "comm/rendezvous/store.h"
#include "comm/transport/works.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;
// The network side: a listening address and its I/O thread.
using GlooDevice = std::shared_ptr<gloo::transport::Device>;

// A host often resolves its own name to the loopback address. Nothing is sent
// here: the system only reports which address it would send from.
std::string address_towards(const std::string& host) {
  const Addresses found(host, 9, SOCK_DGRAM);
  for (const addrinfo* each = found.first(); each != nullptr;
       each = each->ai_next) {
    const int socket = ::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    const bool is_known =
        ::connect(socket, each->ai_addr, each->ai_addrlen) == 0;
    std::string address = is_known ? own_address(socket) : std::string();
    ::close(socket);
    if (is_known) return address;
  }
  return {};
}

GlooDevice make_gloo_device(const TransportSettings& settings) {
  const PipeSignalBlock block;
  using c10d::ProcessGroupGloo;
  if (const auto interface = settings.environment.get("GLOO_SOCKET_IFNAME"))
    return ProcessGroupGloo::createDeviceForInterface(*interface);
  // Loopback always works on one node; the node's own name may not resolve.
  if (settings.is_single_node)
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const std::string address = address_towards(settings.main_address);
  if (!address.empty())
    return ProcessGroupGloo::createDeviceForHostname(address);
  return ProcessGroupGloo::createDefaultDevice();
}

bool gloo_can_reduce(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return op != ReduceOp::mean;
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return op == ReduceOp::sum || op == ReduceOp::product ||
          op == ReduceOp::min || op == ReduceOp::max;
    default:
      return false;
  }
}

const TransportFacts& gloo_facts() {
  static const TransportFacts facts{
      .name = "gloo",
      .device_types = {c10::DeviceType::CPU},
      .can_reduce = &gloo_can_reduce,
      .point_to_point = PointToPoint::tagged,
      .is_thread_safe = true};
  return facts;
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::bit_and:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bit_or:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bit_xor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::sum:
    case ReduceOp::mean:
      break;
  }
  return c10d::ReduceOp::SUM;
}

/// A message in flight. ProcessGroupGloo (LibTorch 2.11, 2.15) limits waiting
/// for a message by the timeout for connecting, even after setTimeout(), unless
/// wait() is given another one.
class GlooMessage final : public c10d::Work {
 public:
  GlooMessage(detail::Work work, milliseconds timeout)
      : work_(std::move(work)), timeout_(timeout) {}

  bool isCompleted() override { return work_->isCompleted(); }
  [[nodiscard]] bool isSuccess() const override { return work_->isSuccess(); }
  [[nodiscard]] int sourceRank() const override { return work_->sourceRank(); }
  bool wait(milliseconds timeout) override {
    return work_->wait(timeout == kNoTimeout ? timeout_ : timeout);
  }
  void abort() override { work_->abort(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return work_->getFuture();
  }

 private:
  detail::Work work_;
  milliseconds timeout_;
};

/// Gloo (LibTorch 2.11, 2.15) writes to its sockets without MSG_NOSIGNAL, so
/// SIGPIPE would end the process when a peer is gone. Gloo's threads inherit
/// the signal mask in force when they are started; functions that write from
/// the calling thread block the signal themselves.
class GlooConnection final : public Connection {
 public:
  GlooConnection(
      c10::intrusive_ptr<c10d::Backend> backend,
      milliseconds timeout)
      : Connection(backend->getRank(), backend->getSize()),
        backend_(std::move(backend)),
        timeout_(timeout) {
    backend_->setTimeout(timeout_);
  }

  [[nodiscard]] const TransportFacts& facts() const override {
    return gloo_facts();
  }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    return backend_->allreduce(tensors, options);
  }

  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    // Gloo uses the senders' tensors as scratch space.
    std::vector<at::Tensor> tensors{rank() == dst ? tensor : tensor.clone()};
    c10d::ReduceOptions options;
    options.reduceOp = to_c10d(op);
    options.rootRank = dst;
    return backend_->reduce(tensors, options);
  }

  Work broadcast(const at::Tensor& tensor, int src) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = src;
    return backend_->broadcast(tensors, options);
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (input.numel() == 0) return completed_work({output});
    at::Tensor to = output;
    at::Tensor from = input;
    return backend_->_allgather_base(to, from);
  }

  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    if (input.numel() == 0) return completed_work(outputs);
    std::vector<std::vector<at::Tensor>> to;
    if (rank() == dst) to.push_back(outputs);
    std::vector<at::Tensor> from{input};
    c10d::GatherOptions options;
    options.rootRank = dst;
    return backend_->gather(to, from, options);
  }

  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    if (input.numel() == 0) return completed_work({output});
    at::Tensor to = output;
    at::Tensor from = input;
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op);
    return backend_->_reduce_scatter_base(to, from, options);
  }

  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    if (output.numel() == 0) return completed_work({output});
    std::vector<at::Tensor> to{output};
    std::vector<std::vector<at::Tensor>> from;
    if (rank() == src) from.push_back(inputs);
    c10d::ScatterOptions options;
    options.rootRank = src;
    return backend_->scatter(to, from, options);
  }

  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    at::Tensor to = output;
    at::Tensor from = input;
    // Gloo moves from its size arguments.
    std::vector<std::int64_t> to_sizes = output_sizes;
    std::vector<std::int64_t> from_sizes = input_sizes;
    return backend_->alltoall_base(to, from, to_sizes, from_sizes);
  }

  Work barrier() override { return backend_->barrier(); }

  void monitored_barrier(milliseconds timeout) override {
    const PipeSignalBlock block;
    c10d::BarrierOptions options;
    options.timeout = timeout;
    backend_->monitoredBarrier(options, /*waitAllRanks=*/true);
  }

  Work send(const at::Tensor& tensor, int dst, int tag) override {
    const PipeSignalBlock block;
    std::vector<at::Tensor> tensors{tensor};
    return message(backend_->send(tensors, dst, tag));
  }

  Work receive(const at::Tensor& tensor, int src, int tag) override {
    const PipeSignalBlock block;
    std::vector<at::Tensor> tensors{tensor};
    return message(backend_->recv(tensors, src, tag));
  }

 private:
  [[nodiscard]] Work message(Work work) const {
    return c10::make_intrusive<GlooMessage>(std::move(work), timeout_);
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  milliseconds timeout_;
};

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(const TransportSettings& settings)
      : device_(make_gloo_device(settings)) {}

  [[nodiscard]] const TransportFacts& facts() const override {
    return gloo_facts();
  }

  [[nodiscard]] std::shared_ptr<Connection> connect(
      const ConnectRequest& request) override;

  // The wheels ship no headers for Gloo's exception types, so only the text can
  // be examined.
  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    const std::string_view text = error.what();
    for (const std::string_view mark :
         {"/gloo/",
          "Connection closed by peer",
          "Connection reset by peer",
          "Timed out waiting"}) {
      if (text.find(mark) != std::string_view::npos)
        return first_line_of(error);
    }
    return std::nullopt;
  }

 private:
  GlooDevice device_;
};

// Where machines are busy, Gloo (LibTorch 2.11, 2.15) sometimes loses a
// connection while making it: one rank fails at once, the others wait for it.
// All ranks have arrived by now, so the timeout is short, and they retry
// together.
std::shared_ptr<Connection> GlooTransport::connect(
    const ConnectRequest& request) {
  constexpr int kAttempts = 4;
  const int size = static_cast<int>(request.world_ranks.size());
  // Gloo itself waits several times this long.
  const milliseconds connect_timeout =
      milliseconds(5000) + size * milliseconds(20);
  std::string failure;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(
        format("attempt/{}", attempt), request.store);
    c10::intrusive_ptr<c10d::Backend> backend;
    try {
      const PipeSignalBlock block;
      auto options = c10d::ProcessGroupGloo::Options::create(
          std::min(connect_timeout, request.timeout));
      options->devices.push_back(device_);
      backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
          store, request.rank, size, options);
    } catch (const std::exception& error) {
      failure = first_line_of(error);
    }
    store->set(
        format("is_connected/{}", request.rank),
        std::string(backend ? "1" : "0"));
    bool all_connected = true;
    for (int peer = 0; peer < size; ++peer) {
      const std::string key = format("is_connected/{}", peer);
      if (!wait_for_key(*store, key, 10 * connect_timeout)) {
        throw DistributedError(format(
            "[comm] rank {} is gone or stuck while the ranks "
            "of group \"{}\" connect",
            request.world_ranks[static_cast<std::size_t>(peer)],
            request.name));
      }
      all_connected = all_connected && store->get_to_str(key) == "1";
    }
    if (all_connected) {
      return std::make_shared<GlooConnection>(
          std::move(backend), request.timeout);
    }
    request.logger.log(
        LogLevel::info,
        "comm",
        format(
            "connecting group \"{}\" failed; trying again: {}",
            request.name,
            failure));
  }
  throw std::runtime_error(
      failure.empty() ? "another rank failed each time" : failure);
}

}  // namespace

std::shared_ptr<Transport> make_gloo_transport(
    const TransportSettings& settings) {
  return std::make_shared<GlooTransport>(settings);
}

}  // namespace accelerate::detail
