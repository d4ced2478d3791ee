#include <utility>

#include <ATen/Functions.h>

#include "comm/transport/adapters/adapters.h"
#include "comm/transport/adapters/connection_adapter.h"
#include "comm/transport/adapters/reduction_encoding.h"
#include "comm/transport/works.h"

namespace accelerate::detail {

namespace {

// A tensor as the transport moves it: the tensor itself if the transport takes
// views, otherwise its bytes, which are a view, or a copy if it is not
// contiguous.
struct MovedTensor {
  MovedTensor(const TransportFacts& facts, const at::Tensor& moved)
      : tensor(moved),
        sent(
            facts.takes_views && is_plain(moved) ? moved.detach()
                                                 : as_bytes(moved)),
        is_alias(moved.numel() == 0 || sent.data_ptr() == moved.data_ptr()) {}

  // Copies received bytes into the tensor, unless it shares their memory.
  void write_back() const {
    if (is_alias) return;
    tensor.detach().copy_(
        sent.view(tensor.scalar_type()).reshape(tensor.sizes()));
  }

  at::Tensor tensor;
  at::Tensor sent;
  bool is_alias;
};

std::vector<std::int64_t> as_sent(
    std::vector<std::int64_t> sizes,
    const MovedTensor& tensor) {
  const auto factor = static_cast<std::int64_t>(
      tensor.tensor.element_size() / tensor.sent.element_size());
  for (std::int64_t& size : sizes) size *= factor;
  return sizes;
}

class DtypeWidening final : public ConnectionAdapter {
 public:
  explicit DtypeWidening(std::shared_ptr<Connection> connection)
      : ConnectionAdapter(std::move(connection)) {
    facts_.can_reduce = [](at::ScalarType, ReduceOp) { return true; };
  }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    const ReductionEncoding encoding(inner().facts(), tensor, op);
    Work work = inner().all_reduce(encoding.buffer(), encoding.transport_op());
    return decoded(std::move(work), encoding, encoding.buffer(), tensor);
  }

  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    const ReductionEncoding encoding(inner().facts(), tensor, op);
    Work work = inner().reduce(encoding.buffer(), encoding.transport_op(), dst);
    if (rank() != dst) return work;
    return decoded(std::move(work), encoding, encoding.buffer(), tensor);
  }

  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    const ReductionEncoding encoding(inner().facts(), input, op);
    const bool is_same =
        output.scalar_type() == encoding.buffer().scalar_type() &&
        (output.is_contiguous() ||
         (inner().facts().takes_views && is_plain(output)));
    const at::Tensor reduced = is_same
        ? output
        : at::empty_like(
              encoding.buffer().narrow(0, 0, output.size(0)),
              at::MemoryFormat::Contiguous);
    Work work = inner().reduce_scatter(
        reduced, encoding.buffer(), encoding.transport_op());
    return decoded(std::move(work), encoding, reduced, output);
  }

  Work broadcast(const at::Tensor& tensor, int src) override {
    const MovedTensor moved = as_moved(tensor);
    Work work = inner().broadcast(moved.sent, src);
    return rank() == src ? work : received(std::move(work), moved);
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    const MovedTensor moved = as_moved(output);
    return received(
        inner().all_gather(moved.sent, as_moved(input).sent), moved);
  }

  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    std::vector<MovedTensor> moved;
    std::vector<at::Tensor> sent;
    for (const at::Tensor& output : outputs) {
      moved.push_back(as_moved(output));
      sent.push_back(moved.back().sent);
    }
    return received(
        inner().gather(sent, as_moved(input).sent, dst), std::move(moved));
  }

  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    const MovedTensor moved = as_moved(output);
    std::vector<at::Tensor> sent;
    for (const at::Tensor& input : inputs) sent.push_back(as_moved(input).sent);
    return received(inner().scatter(moved.sent, sent, src), moved);
  }

  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    const MovedTensor to = as_moved(output);
    const MovedTensor from = as_moved(input);
    Work work = inner().all_to_all(
        to.sent,
        from.sent,
        as_sent(output_sizes, to),
        as_sent(input_sizes, from));
    return received(std::move(work), to);
  }

  Work send(const at::Tensor& tensor, int dst, int tag) override {
    return inner().send(as_moved(tensor).sent, dst, tag);
  }

  Work receive(const at::Tensor& tensor, int src, int tag) override {
    const MovedTensor moved = as_moved(tensor);
    return received(inner().receive(moved.sent, src, tag), moved);
  }

 private:
  [[nodiscard]] MovedTensor as_moved(const at::Tensor& tensor) const {
    return {inner().facts(), tensor};
  }

  [[nodiscard]] Work decoded(
      Work work,
      const ReductionEncoding& encoding,
      const at::Tensor& reduced,
      const at::Tensor& tensor) const {
    if (encoding.is_identity() && reduced.is_alias_of(tensor)) return work;
    const auto decode = [encoding, reduced, tensor, num_ranks = size()] {
      const at::Tensor result = encoding.decode(reduced, num_ranks);
      if (!result.is_alias_of(tensor)) tensor.detach().copy_(result);
    };
    return work_then(std::move(work), decode, {tensor});
  }

  static Work received(Work work, const MovedTensor& moved) {
    if (moved.is_alias) return work;
    return work_then(
        std::move(work), [moved] { moved.write_back(); }, {moved.tensor});
  }

  static Work received(Work work, std::vector<MovedTensor> moved) {
    std::vector<at::Tensor> tensors;
    for (const MovedTensor& each : moved) tensors.push_back(each.tensor);
    const auto write = [moved = std::move(moved)] {
      for (const MovedTensor& each : moved) each.write_back();
    };
    return work_then(std::move(work), write, std::move(tensors));
  }
};

}  // namespace

std::shared_ptr<Connection> widen_dtypes(
    std::shared_ptr<Connection> connection) {
  return std::make_shared<DtypeWidening>(std::move(connection));
}

}  // namespace accelerate::detail
