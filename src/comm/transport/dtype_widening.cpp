#include <utility>

#include <ATen/Functions.h>

#include "comm/transport/adapters.h"
#include "comm/transport/connection_adapter.h"
#include "comm/transport/reduction_encoding.h"
#include "comm/transport/works.h"

namespace accelerate::detail {

namespace {

// The bytes of a tensor: a view, or a copy of one that is not contiguous.
struct MovedBytes {
  explicit MovedBytes(const at::Tensor& moved)
      : tensor(moved),
        bytes(as_bytes(moved)),
        is_alias(moved.numel() == 0 || bytes.data_ptr() == moved.data_ptr()) {}

  // Copies received bytes into the tensor, unless they are there already.
  void write_back() const {
    if (is_alias) return;
    tensor.detach().copy_(
        bytes.view(tensor.scalar_type()).reshape(tensor.sizes()));
  }

  at::Tensor tensor;
  at::Tensor bytes;
  bool is_alias;
};

std::vector<std::int64_t> in_bytes(
    std::vector<std::int64_t> sizes,
    const at::Tensor& tensor) {
  for (std::int64_t& size : sizes)
    size *= static_cast<std::int64_t>(tensor.element_size());
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
    const bool is_same = output.is_contiguous() &&
        output.scalar_type() == encoding.buffer().scalar_type();
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
    const MovedBytes moved(tensor);
    Work work = inner().broadcast(moved.bytes, src);
    return rank() == src ? work : received(std::move(work), moved);
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    const MovedBytes moved(output);
    return received(inner().all_gather(moved.bytes, as_bytes(input)), moved);
  }

  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    std::vector<MovedBytes> moved(outputs.begin(), outputs.end());
    std::vector<at::Tensor> bytes;
    for (const MovedBytes& each : moved) bytes.push_back(each.bytes);
    return received(
        inner().gather(bytes, as_bytes(input), dst), std::move(moved));
  }

  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    const MovedBytes moved(output);
    std::vector<at::Tensor> bytes;
    for (const at::Tensor& input : inputs) bytes.push_back(as_bytes(input));
    return received(inner().scatter(moved.bytes, bytes, src), moved);
  }

  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    const MovedBytes moved(output);
    Work work = inner().all_to_all(
        moved.bytes,
        as_bytes(input),
        in_bytes(output_sizes, output),
        in_bytes(input_sizes, input));
    return received(std::move(work), moved);
  }

  Work send(const at::Tensor& tensor, int dst, int tag) override {
    return inner().send(as_bytes(tensor), dst, tag);
  }

  Work receive(const at::Tensor& tensor, int src, int tag) override {
    const MovedBytes moved(tensor);
    return received(inner().receive(moved.bytes, src, tag), moved);
  }

 private:
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

  static Work received(Work work, const MovedBytes& moved) {
    if (moved.is_alias) return work;
    return work_then(
        std::move(work), [moved] { moved.write_back(); }, {moved.tensor});
  }

  static Work received(Work work, std::vector<MovedBytes> moved) {
    std::vector<at::Tensor> tensors;
    for (const MovedBytes& each : moved) tensors.push_back(each.tensor);
    const auto write = [moved = std::move(moved)] {
      for (const MovedBytes& each : moved) each.write_back();
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
