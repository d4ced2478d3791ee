#include <accelerate/world.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/collectives/run_collective.h"
#include "comm/group/group_impl.h"
#include "comm/transport/adapters/reduction_encoding.h"

namespace accelerate {

namespace {

using detail::as_bytes;
using detail::CallSite;
using detail::format;
using detail::GroupImpl;

at::Tensor from_bytes(
    const at::Tensor& bytes,
    const at::Tensor& like,
    at::IntArrayRef shape) {
  if (bytes.numel() == 0) return at::empty(shape, like.options());
  return bytes.view(like.scalar_type()).reshape(shape);
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

void Group::all_reduce(const at::Tensor& tensor, ReduceOp op, CallSite site)
    const {
  detail::require_dense("all_reduce", tensor);
  detail::require_meaning("all_reduce", op, tensor.scalar_type());
  if (size() == 1) return;
  detail::run_collective(*impl_, {"all_reduce", site}, tensor, [&] {
    impl_->connection->all_reduce(tensor, op)->wait();
  });
}

void Group::reduce(
    const at::Tensor& tensor,
    int dst,
    ReduceOp op,
    CallSite site) const {
  detail::require_dense("reduce", tensor);
  detail::require_rank(*impl_, "reduce", dst);
  detail::require_meaning("reduce", op, tensor.scalar_type());
  if (size() == 1) return;
  detail::run_collective(*impl_, {"reduce", site, dst}, tensor, [&] {
    impl_->connection->reduce(tensor, op, dst)->wait();
  });
}

void Group::broadcast(const at::Tensor& tensor, int src, CallSite site) const {
  detail::require_dense("broadcast", tensor);
  detail::require_rank(*impl_, "broadcast", src);
  if (size() == 1) return;
  detail::run_collective(*impl_, {"broadcast", site, src}, tensor, [&] {
    impl_->connection->broadcast(tensor, src)->wait();
  });
}

std::vector<at::Tensor> Group::all_gather(
    const at::Tensor& tensor,
    CallSite site) const {
  detail::require_dense("all_gather", tensor);
  if (size() == 1) return {tensor.detach()};
  return detail::run_collective(*impl_, {"all_gather", site}, tensor, [&] {
    std::vector<std::int64_t> shape{size()};
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    const at::Tensor output = at::empty(shape, tensor.options());
    impl_->connection->all_gather(output, tensor)->wait();
    return output.unbind(0);
  });
}

std::vector<at::Tensor> Group::all_gather_uneven(
    const at::Tensor& tensor,
    CallSite site) const {
  detail::require_dense("all_gather_uneven", tensor);
  if (size() == 1) return {tensor.detach()};
  // Exchange shapes first, as bytes, since even the number of dimensions can
  // differ.
  const std::string dtype = c10::toString(tensor.scalar_type());
  std::string shape = dtype + ":";
  for (const std::int64_t extent : tensor.sizes())
    shape += format("{},", extent);
  const std::vector<std::string> shapes = all_gather_bytes(shape, site);
  return detail::run_collective(
      *impl_,
      {"all_gather_uneven", site},
      c10::toString(tensor.scalar_type()),
      [&] {
        const auto element_size =
            static_cast<std::int64_t>(tensor.element_size());
        std::vector<std::vector<std::int64_t>> extents;
        std::int64_t longest = 0;
        for (const std::string& text : shapes) {
          const std::size_t colon = text.find(':');
          if (text.substr(0, colon) != dtype) {
            throw DistributedError(format(
                "[comm] tensors of all_gather_uneven must have one dtype, but "
                "have {} on this rank and {} on rank {}; convert one of them",
                dtype,
                text.substr(0, colon),
                world_ranks()[extents.size()]));
          }
          std::vector<std::int64_t> extent;
          for (const std::string& number :
               detail::split(text.substr(colon + 1), ',')) {
            if (const auto value = detail::parse_int(number))
              extent.push_back(*value);
          }
          longest =
              std::max(longest, c10::multiply_integers(extent) * element_size);
          extents.push_back(std::move(extent));
        }
        const at::Tensor mine = as_bytes(tensor);
        const at::Tensor padded = at::empty({longest}, mine.options());
        padded.narrow(0, 0, mine.numel()).copy_(mine);
        const at::Tensor output = at::empty({size() * longest}, mine.options());
        if (longest > 0) impl_->connection->all_gather(output, padded)->wait();
        std::vector<at::Tensor> outputs;
        for (int peer = 0; peer < size(); ++peer) {
          const auto& extent = extents[static_cast<std::size_t>(peer)];
          const std::int64_t length =
              c10::multiply_integers(extent) * element_size;
          // The clone is aligned for its dtype.
          outputs.push_back(from_bytes(
              output.narrow(0, peer * longest, length).clone(),
              tensor,
              extent));
        }
        return outputs;
      });
}

std::vector<at::Tensor>
Group::gather(const at::Tensor& tensor, int dst, CallSite site) const {
  detail::require_dense("gather", tensor);
  detail::require_rank(*impl_, "gather", dst);
  if (size() == 1) return {tensor.detach()};
  return detail::run_collective(*impl_, {"gather", site, dst}, tensor, [&] {
    std::vector<at::Tensor> outputs;
    for (int peer = 0; peer < size() && rank() == dst; ++peer)
      outputs.push_back(at::empty(tensor.sizes(), tensor.options()));
    impl_->connection->gather(outputs, tensor, dst)->wait();
    return outputs;
  });
}

at::Tensor Group::reduce_scatter(
    const at::Tensor& tensor,
    ReduceOp op,
    CallSite site) const {
  detail::require_dense("reduce_scatter", tensor);
  detail::require_meaning("reduce_scatter", op, tensor.scalar_type());
  if (tensor.dim() == 0 || tensor.size(0) % size() != 0) {
    throw ConfigError(format(
        "[comm] dimension 0 of a tensor of shape {} must divide evenly among "
        "{} ranks for reduce_scatter, so pad it",
        tensor.sizes(),
        size()));
  }
  if (size() == 1) return tensor.detach().clone();
  return detail::run_collective(*impl_, {"reduce_scatter", site}, tensor, [&] {
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    shape[0] /= size();
    const at::Tensor output = at::empty(shape, tensor.options());
    impl_->connection->reduce_scatter(output, tensor, op)->wait();
    return output;
  });
}

void Group::scatter(
    const at::Tensor& output,
    std::span<const at::Tensor> parts,
    int src,
    CallSite site) const {
  detail::require_dense("scatter", output);
  detail::require_rank(*impl_, "scatter", src);
  if (rank() == src) {
    detail::require_parts(*impl_, "scatter", parts.size());
    for (const at::Tensor& part : parts) {
      detail::require_dense("scatter", part);
      if (part.sizes() != output.sizes() ||
          part.scalar_type() != output.scalar_type()) {
        throw ConfigError(format(
            "[comm] dtype and shape of scatter's parts must be those of the "
            "output, but a part has {} for an output of {}",
            detail::text_of(part),
            detail::text_of(output)));
      }
    }
  }
  if (size() == 1) {
    const at::NoGradGuard no_grad;
    output.detach().copy_(parts[0]);
    return;
  }
  detail::run_collective(*impl_, {"scatter", site, src}, output, [&] {
    std::vector<at::Tensor> inputs;
    if (rank() == src) inputs.assign(parts.begin(), parts.end());
    impl_->connection->scatter(output, inputs, src)->wait();
  });
}

std::vector<at::Tensor> Group::all_to_all(
    std::span<const at::Tensor> parts,
    CallSite site) const {
  detail::require_parts(*impl_, "all_to_all", parts.size());
  for (const at::Tensor& part : parts) {
    detail::require_dense("all_to_all", part);
    const bool alike = part.dim() == parts[0].dim() && part.dim() > 0 &&
        part.scalar_type() == parts[0].scalar_type() &&
        part.sizes().slice(1) == parts[0].sizes().slice(1);
    if (!alike) {
      throw ConfigError(format(
          "[comm] parts of all_to_all must have a dimension 0 and differ only "
          "there, but are {} and {}",
          detail::text_of(parts[0]),
          detail::text_of(part)));
    }
  }
  if (size() == 1) return {parts[0].detach()};
  const at::Tensor& like = parts[0];
  const std::string detail =
      format("{} {}", c10::toString(like.scalar_type()), like.sizes().slice(1));
  return detail::run_collective(*impl_, {"all_to_all", site}, detail, [&] {
    const at::Tensor sent_rows = at::empty({size()}, at::kLong);
    const at::Tensor received_rows = at::empty({size()}, at::kLong);
    for (int peer = 0; peer < size(); ++peer) {
      sent_rows.data_ptr<std::int64_t>()[peer] =
          parts[static_cast<std::size_t>(peer)].size(0);
    }
    impl_->connection->all_to_all(received_rows, sent_rows, {}, {})->wait();

    const std::int64_t row_bytes =
        c10::multiply_integers(like.sizes().slice(1)) *
        static_cast<std::int64_t>(like.element_size());
    std::vector<at::Tensor> flat;
    std::vector<std::int64_t> sent_bytes;
    std::vector<std::int64_t> received_bytes;
    for (int peer = 0; peer < size(); ++peer) {
      flat.push_back(as_bytes(parts[static_cast<std::size_t>(peer)]));
      sent_bytes.push_back(flat.back().numel());
      received_bytes.push_back(
          received_rows.data_ptr<std::int64_t>()[peer] * row_bytes);
    }
    const at::Tensor input = at::cat(flat);
    const at::Tensor output = at::empty(
        {std::accumulate(
            received_bytes.begin(), received_bytes.end(), std::int64_t{0})},
        input.options());
    impl_->connection->all_to_all(output, input, received_bytes, sent_bytes)
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
  detail::require_rank(*impl_, "send", dst);
  detail::require_tag("send", tag);
  if (dst == rank()) {
    throw ConfigError(
        format("[comm] rank {} cannot send to itself; copy instead", dst));
  }
  if (tensor.numel() == 0) return;
  detail::run_message(*impl_, "send", dst, [&] {
    impl_->connection->send(tensor, dst, tag)->wait();
  });
}

void Group::recv(const at::Tensor& tensor, int src, int tag) const {
  detail::require_dense("recv", tensor);
  detail::require_rank(*impl_, "recv", src);
  detail::require_tag("recv", tag);
  if (src == rank()) {
    throw ConfigError(
        format("[comm] rank {} cannot receive from itself; copy instead", src));
  }
  if (tensor.numel() == 0) return;
  detail::run_message(*impl_, "recv", src, [&] {
    impl_->connection->receive(tensor, src, tag)->wait();
  });
}

void Group::barrier(CallSite site) const {
  if (size() == 1) return;
  detail::run_collective(*impl_, {"barrier", site}, "", [&] {
    impl_->connection->barrier()->wait();
  });
}

void Group::monitored_barrier(std::chrono::milliseconds timeout, CallSite site)
    const {
  if (size() == 1) return;
  detail::run_collective(*impl_, {"monitored_barrier", site}, "", [&] {
    impl_->connection->monitored_barrier(timeout);
  });
}

}  // namespace accelerate
