#include <accelerate/world.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/group_impl.h"
#include "comm/wire.h"

namespace accelerate {

namespace {

using detail::ArithmeticWire;
using detail::as_bytes;
using detail::concat;
using detail::GroupImpl;

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

std::string describe(const at::Tensor& tensor) {
  return concat(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
}

// Runs one collective: numbers it, compares it between ranks in debug mode,
// and gives failures their meaning.
template <class Body>
auto run(
    const GroupImpl& group,
    const char* operation,
    const std::string& detail,
    Body&& body) {
  const at::NoGradGuard no_grad;
  const std::uint64_t sequence = ++const_cast<GroupImpl&>(group).sequence;
  try {
    if (group.world->debug) detail::check_agreement(group, operation, detail);
    return std::forward<Body>(body)();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    detail::fail_collective(group, operation, sequence, error);
  }
}

void require_rank(const GroupImpl& group, const char* operation, int rank) {
  if (rank >= 0 && rank < group.size) return;
  throw ConfigError(concat(
      "[comm] ",
      operation,
      " was asked for rank ",
      rank,
      " of a group of ",
      group.size,
      "; ranks count from 0 to ",
      group.size - 1));
}

void require_parts(
    const GroupImpl& group,
    const char* operation,
    std::size_t count) {
  if (count == static_cast<std::size_t>(group.size)) return;
  throw ConfigError(concat(
      "[comm] ",
      operation,
      " was given ",
      count,
      " parts for ",
      group.size,
      " ranks; it needs one for each"));
}

// Gloo works in host memory: tensors of other devices are staged.
at::Tensor on_host(const at::Tensor& tensor) { return tensor.to(at::kCPU); }

// The bytes of `tensor` in host memory, and whether writing them writes it.
struct HostBytes {
  explicit HostBytes(const at::Tensor& tensor)
      : bytes(on_host(as_bytes(tensor))),
        is_alias(tensor.numel() > 0 && bytes.data_ptr() == tensor.data_ptr()) {}

  // Puts what was received into `tensor`.
  void write_back(const at::Tensor& tensor) const {
    if (is_alias) return;
    tensor.detach().copy_(
        bytes.view(tensor.scalar_type()).reshape(tensor.sizes()));
  }

  at::Tensor bytes;
  bool is_alias;
};

at::Tensor from_bytes(
    const at::Tensor& bytes,
    const at::Tensor& like,
    at::IntArrayRef shape) {
  if (bytes.numel() == 0) return at::empty(shape, like.options());
  return bytes.view(like.scalar_type()).reshape(shape).to(like.device());
}

at::Tensor from_text(std::string_view text) {
  at::Tensor bytes =
      at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  return bytes;
}

std::string to_text(const at::Tensor& bytes) {
  const auto* const data =
      reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>());
  return {data, static_cast<std::size_t>(bytes.numel())};
}

}  // namespace

Group::Group() : impl_(std::make_shared<GroupImpl>()) {}

Group::Group(std::shared_ptr<detail::GroupImpl> impl)
    : impl_(std::move(impl)) {}

int Group::rank() const { return impl_->rank; }

int Group::size() const { return impl_->size; }

const std::vector<int>& Group::world_ranks() const {
  return impl_->world_ranks;
}

void Group::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  detail::require_dense("all_reduce", tensor);
  const at::NoGradGuard no_grad;
  ArithmeticWire wire("all_reduce", tensor, op);
  if (size() == 1) return;
  run(*impl_, "all_reduce", describe(tensor), [&] {
    std::vector<at::Tensor> buffers{on_host(wire.buffer())};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(wire.transport_op());
    impl_->backend->allreduce(buffers, options)->wait();
    const at::Tensor result = wire.decode(buffers[0], size());
    if (!result.is_alias_of(tensor)) tensor.detach().copy_(result);
  });
}

void Group::reduce(const at::Tensor& tensor, int dst, ReduceOp op) const {
  detail::require_dense("reduce", tensor);
  require_rank(*impl_, "reduce", dst);
  const at::NoGradGuard no_grad;
  ArithmeticWire wire("reduce", tensor, op);
  if (size() == 1) return;
  run(*impl_, "reduce", describe(tensor), [&] {
    // Gloo uses the senders' buffers as scratch.
    at::Tensor buffer = on_host(wire.buffer());
    if (rank() != dst && buffer.is_alias_of(tensor)) buffer = buffer.clone();
    std::vector<at::Tensor> buffers{buffer};
    c10d::ReduceOptions options;
    options.reduceOp = to_c10d(wire.transport_op());
    options.rootRank = dst;
    impl_->backend->reduce(buffers, options)->wait();
    if (rank() != dst) return;
    const at::Tensor result = wire.decode(buffers[0], size());
    if (!result.is_alias_of(tensor)) tensor.detach().copy_(result);
  });
}

void Group::broadcast(const at::Tensor& tensor, int src) const {
  detail::require_dense("broadcast", tensor);
  require_rank(*impl_, "broadcast", src);
  if (size() == 1) return;
  run(*impl_, "broadcast", describe(tensor), [&] {
    const HostBytes host(tensor);
    std::vector<at::Tensor> buffers{host.bytes};
    c10d::BroadcastOptions options;
    options.rootRank = src;
    impl_->backend->broadcast(buffers, options)->wait();
    if (rank() != src) host.write_back(tensor);
  });
}

std::vector<at::Tensor> Group::all_gather(const at::Tensor& tensor) const {
  detail::require_dense("all_gather", tensor);
  if (size() == 1) return {tensor.detach()};
  return run(*impl_, "all_gather", describe(tensor), [&] {
    const at::Tensor input = on_host(as_bytes(tensor));
    at::Tensor output = at::empty({size() * input.numel()}, at::kByte);
    at::Tensor source = input;
    if (input.numel() > 0)
      impl_->backend->_allgather_base(output, source)->wait();
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part :
         output.reshape({size(), input.numel()}).unbind(0)) {
      parts.push_back(from_bytes(part, tensor, tensor.sizes()));
    }
    return parts;
  });
}

std::vector<at::Tensor> Group::all_gather_uneven(
    const at::Tensor& tensor) const {
  detail::require_dense("all_gather_uneven", tensor);
  if (size() == 1) return {tensor.detach()};
  // Shapes first, as bytes, since even the number of dimensions may differ.
  std::string shape;
  for (const std::int64_t extent : tensor.sizes()) shape += concat(extent, ",");
  const std::vector<std::string> shapes = all_gather_bytes(shape);
  return run(
      *impl_, "all_gather_uneven", c10::toString(tensor.scalar_type()), [&] {
        const auto element_size =
            static_cast<std::int64_t>(tensor.element_size());
        std::vector<std::vector<std::int64_t>> extents;
        std::int64_t longest = 0;
        for (const std::string& text : shapes) {
          std::vector<std::int64_t> extent;
          for (const std::string& number : detail::split(text, ',')) {
            if (const auto value = detail::parse_int(number))
              extent.push_back(*value);
          }
          longest =
              std::max(longest, c10::multiply_integers(extent) * element_size);
          extents.push_back(std::move(extent));
        }
        at::Tensor padded = at::empty({longest}, at::kByte);
        const at::Tensor mine = on_host(as_bytes(tensor));
        padded.narrow(0, 0, mine.numel()).copy_(mine);
        at::Tensor output = at::empty({size() * longest}, at::kByte);
        if (longest > 0)
          impl_->backend->_allgather_base(output, padded)->wait();
        std::vector<at::Tensor> parts;
        for (int peer = 0; peer < size(); ++peer) {
          const auto& extent = extents[static_cast<std::size_t>(peer)];
          const std::int64_t length =
              c10::multiply_integers(extent) * element_size;
          // A copy of its own, aligned for its dtype.
          parts.push_back(from_bytes(
              output.narrow(0, peer * longest, length).clone(),
              tensor,
              extent));
        }
        return parts;
      });
}

std::vector<at::Tensor> Group::gather(const at::Tensor& tensor, int dst) const {
  detail::require_dense("gather", tensor);
  require_rank(*impl_, "gather", dst);
  if (size() == 1) return {tensor.detach()};
  return run(*impl_, "gather", describe(tensor), [&] {
    std::vector<at::Tensor> inputs{on_host(as_bytes(tensor))};
    std::vector<std::vector<at::Tensor>> outputs;
    if (rank() == dst) {
      outputs.emplace_back();
      for (int peer = 0; peer < size(); ++peer)
        outputs[0].push_back(at::empty_like(inputs[0]));
    }
    c10d::GatherOptions options;
    options.rootRank = dst;
    if (tensor.numel() > 0)
      impl_->backend->gather(outputs, inputs, options)->wait();
    std::vector<at::Tensor> parts;
    if (rank() != dst) return parts;
    for (const at::Tensor& part : outputs[0]) {
      parts.push_back(from_bytes(part, tensor, tensor.sizes()));
    }
    return parts;
  });
}

at::Tensor Group::reduce_scatter(const at::Tensor& tensor, ReduceOp op) const {
  detail::require_dense("reduce_scatter", tensor);
  const at::NoGradGuard no_grad;
  ArithmeticWire wire("reduce_scatter", tensor, op);
  if (tensor.dim() == 0 || tensor.size(0) % size() != 0) {
    throw ConfigError(concat(
        "[comm] reduce_scatter was given a tensor of shape ",
        tensor.sizes(),
        " for ",
        size(),
        " ranks; dimension 0 must divide evenly, so pad it"));
  }
  if (size() == 1) return tensor.detach().clone();
  return run(*impl_, "reduce_scatter", describe(tensor), [&] {
    at::Tensor input = on_host(wire.buffer());
    const std::int64_t rows = tensor.size(0) / size();
    at::Tensor output =
        at::empty_like(input.narrow(0, 0, rows), at::MemoryFormat::Contiguous);
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(wire.transport_op());
    if (input.numel() > 0)
      impl_->backend->_reduce_scatter_base(output, input, options)->wait();
    return wire.decode(output, size()).to(tensor.device());
  });
}

void Group::scatter(
    const at::Tensor& output,
    std::span<const at::Tensor> parts,
    int src) const {
  detail::require_dense("scatter", output);
  require_rank(*impl_, "scatter", src);
  if (rank() == src) {
    require_parts(*impl_, "scatter", parts.size());
    for (const at::Tensor& part : parts) {
      detail::require_dense("scatter", part);
      if (part.sizes() != output.sizes() ||
          part.scalar_type() != output.scalar_type()) {
        throw ConfigError(concat(
            "[comm] scatter was given a part of ",
            describe(part),
            " for an output of ",
            describe(output),
            "; they must be alike"));
      }
    }
  }
  if (size() == 1) {
    const at::NoGradGuard no_grad;
    output.detach().copy_(parts[0]);
    return;
  }
  run(*impl_, "scatter", describe(output), [&] {
    const HostBytes host(output);
    std::vector<at::Tensor> outputs{host.bytes};
    std::vector<std::vector<at::Tensor>> inputs;
    if (rank() == src) {
      inputs.emplace_back();
      for (const at::Tensor& part : parts)
        inputs[0].push_back(on_host(as_bytes(part)));
    }
    c10d::ScatterOptions options;
    options.rootRank = src;
    if (output.numel() == 0) return;
    impl_->backend->scatter(outputs, inputs, options)->wait();
    host.write_back(output);
  });
}

std::vector<at::Tensor> Group::all_to_all(
    std::span<const at::Tensor> parts) const {
  require_parts(*impl_, "all_to_all", parts.size());
  for (const at::Tensor& part : parts) {
    detail::require_dense("all_to_all", part);
    const bool alike = part.dim() == parts[0].dim() && part.dim() > 0 &&
        part.scalar_type() == parts[0].scalar_type() &&
        part.sizes().slice(1) == parts[0].sizes().slice(1);
    if (!alike) {
      throw ConfigError(concat(
          "[comm] all_to_all was given parts of ",
          describe(parts[0]),
          " and ",
          describe(part),
          "; they may differ in dimension 0 only, and must have one"));
    }
  }
  if (size() == 1) return {parts[0].detach()};
  const at::Tensor& like = parts[0];
  const std::string detail =
      concat(c10::toString(like.scalar_type()), " ", like.sizes().slice(1));
  return run(*impl_, "all_to_all", detail, [&] {
    std::vector<std::int64_t> even;
    at::Tensor sent_rows = at::empty({size()}, at::kLong);
    at::Tensor received_rows = at::empty({size()}, at::kLong);
    for (int peer = 0; peer < size(); ++peer) {
      sent_rows.data_ptr<std::int64_t>()[peer] =
          parts[static_cast<std::size_t>(peer)].size(0);
    }
    impl_->backend->alltoall_base(received_rows, sent_rows, even, even)->wait();

    const std::int64_t row_bytes =
        c10::multiply_integers(like.sizes().slice(1)) *
        static_cast<std::int64_t>(like.element_size());
    std::vector<at::Tensor> flat;
    std::vector<std::int64_t> sent_bytes;
    std::vector<std::int64_t> received_bytes;
    for (int peer = 0; peer < size(); ++peer) {
      flat.push_back(on_host(as_bytes(parts[static_cast<std::size_t>(peer)])));
      sent_bytes.push_back(flat.back().numel());
      received_bytes.push_back(
          received_rows.data_ptr<std::int64_t>()[peer] * row_bytes);
    }
    at::Tensor input = at::cat(flat);
    at::Tensor output = at::empty(
        {std::accumulate(
            received_bytes.begin(), received_bytes.end(), std::int64_t{0})},
        at::kByte);
    // Gloo moves the sizes out of what it is given.
    std::vector<std::int64_t> output_bytes = received_bytes;
    impl_->backend->alltoall_base(output, input, output_bytes, sent_bytes)
        ->wait();
    std::vector<at::Tensor> received;
    std::int64_t begin = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const std::int64_t length =
          received_bytes[static_cast<std::size_t>(peer)];
      std::vector<std::int64_t> shape = like.sizes().vec();
      shape[0] = received_rows.data_ptr<std::int64_t>()[peer];
      received.push_back(
          from_bytes(output.narrow(0, begin, length).clone(), like, shape));
      begin += length;
    }
    return received;
  });
}

void Group::send(const at::Tensor& tensor, int dst, int tag) const {
  detail::require_dense("send", tensor);
  require_rank(*impl_, "send", dst);
  if (dst == rank()) {
    throw ConfigError(concat(
        "[comm] rank ", dst, " was asked to send to itself; copy instead"));
  }
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  try {
    std::vector<at::Tensor> buffers{on_host(as_bytes(tensor))};
    impl_->backend->send(buffers, dst, tag)->wait();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    detail::fail_collective(*impl_, "send", impl_->sequence, error);
  }
}

void Group::recv(const at::Tensor& tensor, int src, int tag) const {
  detail::require_dense("recv", tensor);
  require_rank(*impl_, "recv", src);
  if (src == rank()) {
    throw ConfigError(concat(
        "[comm] rank ",
        src,
        " was asked to receive from itself; copy instead"));
  }
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  try {
    const HostBytes host(tensor);
    std::vector<at::Tensor> buffers{host.bytes};
    impl_->backend->recv(buffers, src, tag)->wait();
    host.write_back(tensor);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    detail::fail_collective(*impl_, "recv", impl_->sequence, error);
  }
}

void Group::barrier() const {
  if (size() == 1) return;
  run(*impl_, "barrier", "", [&] { impl_->backend->barrier()->wait(); });
}

void Group::monitored_barrier(std::chrono::milliseconds timeout) const {
  if (size() == 1) return;
  run(*impl_, "monitored_barrier", "", [&] {
    c10d::BarrierOptions options;
    options.timeout = timeout;
    impl_->backend->monitoredBarrier(options, /*waitAllRanks=*/true);
  });
}

std::string Group::broadcast_bytes(std::string_view bytes, int src) const {
  require_rank(*impl_, "broadcast_bytes", src);
  if (size() == 1) return std::string(bytes);
  return run(*impl_, "broadcast_bytes", concat("from ", src), [&] {
    c10d::BroadcastOptions options;
    options.rootRank = src;
    std::vector<at::Tensor> length{
        at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong)};
    impl_->backend->broadcast(length, options)->wait();
    const auto count = length[0].item<std::int64_t>();
    std::vector<at::Tensor> content{
        rank() == src ? from_text(bytes) : at::empty({count}, at::kByte)};
    if (count > 0) impl_->backend->broadcast(content, options)->wait();
    return to_text(content[0]);
  });
}

std::vector<std::string> Group::all_gather_bytes(std::string_view bytes) const {
  if (size() == 1) return {std::string(bytes)};
  return run(*impl_, "all_gather_bytes", "", [&] {
    at::Tensor length =
        at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
    at::Tensor lengths = at::empty({size()}, at::kLong);
    impl_->backend->_allgather_base(lengths, length)->wait();
    const auto longest = lengths.max().item<std::int64_t>();
    at::Tensor padded = at::zeros({longest}, at::kByte);
    padded.narrow(0, 0, static_cast<std::int64_t>(bytes.size()))
        .copy_(from_text(bytes));
    at::Tensor output = at::empty({size() * longest}, at::kByte);
    if (longest > 0) impl_->backend->_allgather_base(output, padded)->wait();
    std::vector<std::string> all;
    for (int peer = 0; peer < size(); ++peer) {
      all.push_back(to_text(output.narrow(
          0, peer * longest, lengths.data_ptr<std::int64_t>()[peer])));
    }
    return all;
  });
}

std::string Group::scatter_bytes(std::span<const std::string> parts, int src)
    const {
  require_rank(*impl_, "scatter_bytes", src);
  if (rank() == src) require_parts(*impl_, "scatter_bytes", parts.size());
  if (size() == 1) return parts[0];
  std::vector<at::Tensor> mine(
      static_cast<std::size_t>(size()), at::empty({0}, at::kByte));
  if (rank() == src) {
    std::transform(parts.begin(), parts.end(), mine.begin(), from_text);
  }
  return to_text(all_to_all(mine)[static_cast<std::size_t>(src)].contiguous());
}

}  // namespace accelerate
