#include <utility>

#include <ATen/Functions.h>

#include "comm/transport/adapters/adapters.h"
#include "comm/transport/adapters/connection_adapter.h"
#include "comm/transport/works.h"

namespace accelerate::detail {

namespace {

class HostStaging final : public ConnectionAdapter {
 public:
  using ConnectionAdapter::ConnectionAdapter;

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    const at::Tensor host = copy_of(tensor);
    return back(inner().all_reduce(host, op), host, tensor);
  }

  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    const at::Tensor host = copy_of(tensor);
    Work work = inner().reduce(host, op, dst);
    if (rank() != dst) return work;
    return back(std::move(work), host, tensor);
  }

  Work broadcast(const at::Tensor& tensor, int src) override {
    if (rank() == src) return inner().broadcast(copy_of(tensor), src);
    const at::Tensor host = room_for(tensor);
    return back(inner().broadcast(host, src), host, tensor);
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    const at::Tensor host = room_for(output);
    return back(inner().all_gather(host, copy_of(input)), host, output);
  }

  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    std::vector<at::Tensor> hosts;
    for (const at::Tensor& output : outputs) hosts.push_back(room_for(output));
    Work work = inner().gather(hosts, copy_of(input), dst);
    return back(std::move(work), hosts, outputs);
  }

  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    const at::Tensor host = room_for(output);
    Work work = inner().reduce_scatter(host, copy_of(input), op);
    return back(std::move(work), host, output);
  }

  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    const at::Tensor host = room_for(output);
    std::vector<at::Tensor> hosts;
    for (const at::Tensor& input : inputs) hosts.push_back(copy_of(input));
    return back(inner().scatter(host, hosts, src), host, output);
  }

  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    const at::Tensor host = room_for(output);
    Work work =
        inner().all_to_all(host, copy_of(input), output_sizes, input_sizes);
    return back(std::move(work), host, output);
  }

  Work send(const at::Tensor& tensor, int dst, int tag) override {
    return inner().send(copy_of(tensor), dst, tag);
  }

  Work receive(const at::Tensor& tensor, int src, int tag) override {
    const at::Tensor host = room_for(tensor);
    return back(inner().receive(host, src, tag), host, tensor);
  }

 private:
  [[nodiscard]] bool is_native(const at::Tensor& tensor) const {
    return facts().has_device(tensor.device().type());
  }

  // Both return the tensor itself if the transport can access it; otherwise a
  // copy in pinned memory, which devices copy to and from fastest.
  [[nodiscard]] at::Tensor copy_of(const at::Tensor& tensor) const {
    if (is_native(tensor)) return tensor;
    return room_for(tensor).copy_(tensor.detach());
  }
  [[nodiscard]] at::Tensor room_for(const at::Tensor& tensor) const {
    if (is_native(tensor)) return tensor;
    return at::empty(
        tensor.sizes(),
        tensor.options().device(at::kCPU).pinned_memory(!tensor.is_mps()));
  }

  static Work
  back(Work work, const at::Tensor& host, const at::Tensor& tensor) {
    if (host.is_same(tensor)) return work;
    const auto copy = [host, tensor] { tensor.detach().copy_(host); };
    return work_then(std::move(work), copy, {tensor});
  }

  static Work back(
      Work work,
      std::vector<at::Tensor> hosts,
      std::vector<at::Tensor> tensors) {
    if (hosts.empty() || hosts.front().is_same(tensors.front())) return work;
    const auto copy = [hosts = std::move(hosts), tensors] {
      for (std::size_t i = 0; i < tensors.size(); ++i)
        tensors[i].detach().copy_(hosts[i]);
    };
    return work_then(std::move(work), copy, tensors);
  }
};

}  // namespace

std::shared_ptr<Connection> stage_through_host(
    std::shared_ptr<Connection> connection) {
  return std::make_shared<HostStaging>(std::move(connection));
}

}  // namespace accelerate::detail
