#include "comm/transport/nccl/nccl_transport.h"

#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/transport/handshake.h"
#include "comm/transport/nccl/nccl_communicator.h"
#include "comm/transport/nccl/nccl_watch.h"
#include "comm/transport/nccl/nccl_work.h"
#include "comm/transport/works.h"

namespace accelerate::detail {

namespace {

// NCCL's number of a dtype; nothing for those that it cannot reduce.
std::optional<int> nccl_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return 0;
    case at::kByte:
      return 1;
    case at::kInt:
      return 2;
    case at::kLong:
      return 4;
    case at::kHalf:
      return 6;
    case at::kFloat:
      return 7;
    case at::kDouble:
      return 8;
    case at::kBFloat16:
      return 9;
    default:
      return std::nullopt;
  }
}

std::optional<int> nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return 0;
    case ReduceOp::product:
      return 1;
    case ReduceOp::max:
      return 2;
    case ReduceOp::min:
      return 3;
    case ReduceOp::mean:
      return 4;
    default:
      return std::nullopt;
  }
}

bool nccl_can_reduce(at::ScalarType dtype, ReduceOp op) {
  if (op == ReduceOp::mean && !at::isFloatingType(dtype)) return false;
  return nccl_dtype(dtype).has_value() && nccl_op(op).has_value();
}

TransportFacts nccl_facts(c10::Device device) {
  return {
      .name = "nccl",
      .device_types = {device.type()},
      .can_reduce = &nccl_can_reduce,
      .point_to_point = PointToPoint::none,
      .is_thread_safe = false,
      .has_exchange = true};
}

class NcclConnection final : public Connection {
 public:
  NcclConnection(
      const ConnectRequest& request,
      TransportFacts facts,
      std::shared_ptr<NcclCommunicator> communicator,
      std::shared_ptr<NcclWatch> watch)
      : Connection(request.rank, static_cast<int>(request.world_ranks.size())),
        request_(request),
        facts_(std::move(facts)),
        communicator_(std::move(communicator)),
        watch_(std::move(watch)) {}
  ~NcclConnection() override { communicator_->leave(); }

  [[nodiscard]] const TransportFacts& facts() const override { return facts_; }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return run("all_reduce", {tensor}, {tensor}, [&](auto* comm, auto* stream) {
      return library().all_reduce(
          tensor.const_data_ptr(),
          tensor.mutable_data_ptr(),
          count_of(tensor),
          dtype_of(tensor),
          *nccl_op(op),
          comm,
          stream);
    });
  }

  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    return run("reduce", {tensor}, {tensor}, [&](auto* comm, auto* stream) {
      return library().reduce(
          tensor.const_data_ptr(),
          tensor.mutable_data_ptr(),
          count_of(tensor),
          dtype_of(tensor),
          *nccl_op(op),
          dst,
          comm,
          stream);
    });
  }

  Work broadcast(const at::Tensor& tensor, int src) override {
    return run("broadcast", {tensor}, {tensor}, [&](auto* comm, auto* stream) {
      return library().broadcast(
          tensor.const_data_ptr(),
          tensor.mutable_data_ptr(),
          count_of(tensor),
          dtype_of(tensor),
          src,
          comm,
          stream);
    });
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (input.numel() == 0) return completed_work({output});
    return run(
        "all_gather", {output}, {output, input}, [&](auto* comm, auto* stream) {
          return library().all_gather(
              input.const_data_ptr(),
              output.mutable_data_ptr(),
              count_of(input),
              dtype_of(input),
              comm,
              stream);
        });
  }

  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    if (input.numel() == 0) return completed_work({output});
    return run(
        "reduce_scatter",
        {output},
        {output, input},
        [&](auto* comm, auto* stream) {
          return library().reduce_scatter(
              input.const_data_ptr(),
              output.mutable_data_ptr(),
              count_of(output),
              dtype_of(output),
              *nccl_op(op),
              comm,
              stream);
        });
  }

  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    if (input.numel() == 0) return completed_work(outputs);
    Messages messages;
    messages.sends.emplace_back(input, dst);
    for (std::size_t peer = 0; peer < outputs.size(); ++peer)
      messages.receives.emplace_back(outputs[peer], static_cast<int>(peer));
    return run_messages("gather", outputs, messages);
  }

  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    if (output.numel() == 0) return completed_work({output});
    Messages messages;
    for (std::size_t peer = 0; peer < inputs.size(); ++peer)
      messages.sends.emplace_back(inputs[peer], static_cast<int>(peer));
    messages.receives.emplace_back(output, src);
    return run_messages("scatter", {output}, messages);
  }

  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    Messages messages;
    add_parts(messages.sends, input, input_sizes);
    add_parts(messages.receives, output, output_sizes);
    return run_messages("all_to_all", {output}, messages);
  }

  // One group of messages, which the streams of all ranks reach in the same
  // order, so that none waits for a later one.
  BegunMessages exchange(
      const std::vector<PeerMessage>& sends,
      const std::vector<PeerMessage>& receives) override {
    Messages messages;
    std::vector<at::Tensor> results;
    for (const PeerMessage& each : sends) {
      if (each.tensor.numel() > 0)
        messages.sends.emplace_back(bytes_of(each.tensor), each.peer);
    }
    for (const PeerMessage& each : receives) {
      if (each.tensor.numel() == 0) continue;
      messages.receives.emplace_back(bytes_of(each.tensor), each.peer);
      results.push_back(each.tensor);
    }
    return {run_messages("exchange", std::move(results), messages)};
  }

  void together(const std::function<void()>& begin_all) override {
    joint_.clear();
    communicator_->together(begin_all);
    for (const auto& [name, operation] : std::exchange(joint_, {}))
      watch_->add(name, communicator_, operation);
  }

  Work barrier() override {
    if (!barrier_.defined()) {
      barrier_ = at::zeros(
          {1}, at::TensorOptions(at::kFloat).device(communicator_->device()));
    }
    const at::Tensor& tensor = barrier_;
    const auto operation = begin("barrier", {}, [&](auto* comm, auto* stream) {
      return library().all_reduce(
          tensor.const_data_ptr(),
          tensor.mutable_data_ptr(),
          count_of(tensor),
          dtype_of(tensor),
          *nccl_op(ReduceOp::sum),
          comm,
          stream);
    });
    return work_of(operation, {}, /*waits_on_host=*/true);
  }

  void require_intact() override { communicator_->throw_if_failed(); }
  void abort() noexcept override {
    communicator_->abort("this rank has left the group");
  }

  void monitored_barrier(std::chrono::milliseconds timeout) override {
    ConnectRequest request = request_;
    request.timeout = timeout;
    Handshake(request, format("nccl_barrier/{}", num_barriers_++))
        .exchange("has_come", "1");
  }

 private:
  // Tensors, each with the rank that it goes to or comes from.
  using Parts = std::vector<std::pair<at::Tensor, int>>;
  struct Messages {
    Parts sends, receives;
  };

  [[nodiscard]] const NcclLibrary& library() const {
    return communicator_->library();
  }
  static std::size_t count_of(const at::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel());
  }
  static int dtype_of(const at::Tensor& tensor) {
    return *nccl_dtype(tensor.scalar_type());
  }

  static at::Tensor bytes_of(const at::Tensor& tensor) {
    return tensor.reshape({-1}).view(at::kByte);
  }

  void add_parts(
      Parts& parts,
      const at::Tensor& tensor,
      const std::vector<std::int64_t>& sizes) const {
    const std::int64_t equal = tensor.numel() / size();
    std::int64_t begin = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const std::int64_t length =
          sizes.empty() ? equal : sizes[static_cast<std::size_t>(peer)];
      if (length > 0) parts.emplace_back(tensor.narrow(0, begin, length), peer);
      begin += length;
    }
  }

  Work run_messages(
      const char* name,
      std::vector<at::Tensor> results,
      const Messages& messages) {
    std::vector<at::Tensor> memory;
    for (const Parts* const parts : {&messages.sends, &messages.receives}) {
      for (const auto& part : *parts) memory.push_back(part.first);
    }
    return run(
        name,
        std::move(results),
        std::move(memory),
        [&](auto* comm, auto* stream) {
          library().check(library().group_start(), "ncclGroupStart");
          int code = NcclLibrary::kSuccess;
          const auto note = [&](int result) {
            if (code == NcclLibrary::kSuccess) code = result;
          };
          for (const auto& [tensor, peer] : messages.sends) {
            note(library().send(
                tensor.const_data_ptr(),
                count_of(tensor),
                dtype_of(tensor),
                peer,
                comm,
                stream));
          }
          for (const auto& [tensor, peer] : messages.receives) {
            note(library().receive(
                tensor.mutable_data_ptr(),
                count_of(tensor),
                dtype_of(tensor),
                peer,
                comm,
                stream));
          }
          note(library().group_end());
          return code;
        });
  }

  template <class Issue>
  std::shared_ptr<NcclOperation>
  begin(const char* name, std::vector<at::Tensor> memory, Issue&& issue) {
    auto operation = std::make_shared<NcclOperation>(
        communicator_,
        communicator_->begin(name, std::forward<Issue>(issue)),
        std::move(memory));
    if (communicator_->is_together()) {
      joint_.emplace_back(name, operation);
    } else {
      watch_->add(name, communicator_, operation);
    }
    return operation;
  }

  template <class Issue>
  Work run(
      const char* name,
      std::vector<at::Tensor> results,
      std::vector<at::Tensor> memory,
      Issue&& issue) {
    return work_of(
        begin(name, std::move(memory), std::forward<Issue>(issue)),
        std::move(results));
  }

  ConnectRequest request_;
  TransportFacts facts_;
  std::shared_ptr<NcclCommunicator> communicator_;
  std::shared_ptr<NcclWatch> watch_;
  at::Tensor barrier_;
  /// Operations of together(), watched once they have started.
  std::vector<std::pair<std::string, std::shared_ptr<NcclOperation>>> joint_;
  int num_barriers_ = 0;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(
      std::shared_ptr<const NcclLibrary> library,
      c10::Device device,
      std::function<RankIsGone()> watch_ranks)
      : library_(std::move(library)),
        device_(device),
        watch_ranks_(std::move(watch_ranks)),
        facts_(nccl_facts(device)) {}

  [[nodiscard]] const TransportFacts& facts() const override { return facts_; }

  [[nodiscard]] std::shared_ptr<Connection> connect(
      const ConnectRequest& request) override {
    return std::make_shared<NcclConnection>(
        request,
        facts_,
        std::make_shared<NcclCommunicator>(
            library_, device_, request, watch_ranks_, first_failure_),
        watch_);
  }

  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    if (dynamic_cast<const NcclError*>(&error) == nullptr) return std::nullopt;
    return first_line_of(error);
  }

  [[nodiscard]] std::optional<std::string> failure_on_devices() const override {
    return first_failure_->text();
  }

 private:
  std::shared_ptr<const NcclLibrary> library_;
  c10::Device device_;
  std::function<RankIsGone()> watch_ranks_;
  TransportFacts facts_;
  std::shared_ptr<FirstFailure> first_failure_ =
      std::make_shared<FirstFailure>();
  std::shared_ptr<NcclWatch> watch_ = std::make_shared<NcclWatch>();
};

}  // namespace

std::shared_ptr<Transport> make_nccl_transport(
    std::shared_ptr<const NcclLibrary> library,
    c10::Device device,
    std::function<RankIsGone()> watch_ranks) {
  return std::make_shared<NcclTransport>(
      std::move(library), device, std::move(watch_ranks));
}

}  // namespace accelerate::detail
