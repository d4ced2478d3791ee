#include <accelerate/world.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/collectives/group_impl.h"
#include "comm/transport/adapters/reduction_encoding.h"

namespace accelerate {

namespace {

using detail::as_bytes;
using detail::format;
using detail::GroupImpl;

std::string describe(const at::Tensor& tensor) {
  return format("{} {}", c10::toString(tensor.scalar_type()), tensor.sizes());
}

std::string describe(const std::string& detail) { return detail; }

using detail::CallSite;

// What the board shows of a call.
struct Noted {
  const char* operation;
  CallSite site;
  int root = -1;  // in the group
};

detail::NotedCall
noted(const GroupImpl& group, const Noted& call, const at::Tensor* tensor) {
  detail::NotedCall note;
  note.operation = call.operation;
  note.place = {call.site.file, call.site.line};
  if (call.root >= 0) note.root = group.peer_in_world(call.root);
  if (tensor == nullptr) return note;
  note.dtype = c10::toString(tensor->scalar_type());
  note.shape = {tensor->sizes().data(), tensor->sizes().size()};
  return note;
}

const at::Tensor* tensor_in(const at::Tensor& detail) { return &detail; }

const at::Tensor* tensor_in(const std::string&) { return nullptr; }

// Runs one collective: numbers it, notes it on the board, compares it between
// ranks in debug mode, and turns failures into errors that name the peers.
// `detail`: a tensor of the same shape on all ranks, or a string; it is
// described only in debug mode.
template <class Detail, class Body>
auto run(
    const GroupImpl& group,
    const Noted& call,
    const Detail& detail,
    Body&& body) {
  const at::NoGradGuard no_grad;
  const detail::StepPartScope part(
      group.world->steps.get(), detail::StepPart::communication);
  const std::uint64_t sequence = ++const_cast<GroupImpl&>(group).sequence;
  const detail::NotedCallScope note(
      group.calls.get(), noted(group, call, tensor_in(detail)));
  try {
    if (group.world->debug) {
      accelerate::detail::check_agreement(
          group, call.operation, describe(detail));
    }
    return std::forward<Body>(body)();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    detail::fail_collective(group, call.operation, sequence, error);
  }
}

// Runs a send or a receive.
template <class Body>
void run_message(
    const GroupImpl& group,
    const char* operation,
    int peer,
    Body&& body) {
  const at::NoGradGuard no_grad;
  const std::array peers{group.peer_in_world(peer)};
  const detail::BoardWaitScope wait(group.world->notes(), operation, peers);
  try {
    std::forward<Body>(body)();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    detail::fail_collective(group, operation, group.sequence, error);
  }
}

void require_rank(const GroupImpl& group, const char* operation, int rank) {
  if (rank >= 0 && rank < group.size) return;
  throw ConfigError(format(
      "[comm] {} was asked for rank {} of a group of {}; ranks count from 0 to "
      "{}",
      operation,
      rank,
      group.size,
      group.size - 1));
}

void require_tag(const char* operation, int tag) {
  if (tag >= 0 && tag < detail::kFirstReservedTag) return;
  throw ConfigError(format(
      "[comm] {} was given the tag {}; tags count from 0 to {}",
      operation,
      tag,
      detail::kFirstReservedTag - 1));
}

void require_parts(
    const GroupImpl& group,
    const char* operation,
    std::size_t count) {
  if (count == static_cast<std::size_t>(group.size)) return;
  throw ConfigError(format(
      "[comm] {} was given {} parts for {} ranks; give it one per rank",
      operation,
      count,
      group.size));
}

at::Tensor from_bytes(
    const at::Tensor& bytes,
    const at::Tensor& like,
    at::IntArrayRef shape) {
  if (bytes.numel() == 0) return at::empty(shape, like.options());
  return bytes.view(like.scalar_type()).reshape(shape);
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

void Group::all_reduce(const at::Tensor& tensor, ReduceOp op, CallSite site)
    const {
  detail::require_dense("all_reduce", tensor);
  detail::require_meaning("all_reduce", op, tensor.scalar_type());
  if (size() == 1) return;
  run(*impl_, {"all_reduce", site}, tensor, [&] {
    impl_->connection->all_reduce(tensor, op)->wait();
  });
}

void Group::reduce(
    const at::Tensor& tensor,
    int dst,
    ReduceOp op,
    CallSite site) const {
  detail::require_dense("reduce", tensor);
  require_rank(*impl_, "reduce", dst);
  detail::require_meaning("reduce", op, tensor.scalar_type());
  if (size() == 1) return;
  run(*impl_, {"reduce", site, dst}, tensor, [&] {
    impl_->connection->reduce(tensor, op, dst)->wait();
  });
}

void Group::broadcast(const at::Tensor& tensor, int src, CallSite site) const {
  detail::require_dense("broadcast", tensor);
  require_rank(*impl_, "broadcast", src);
  if (size() == 1) return;
  run(*impl_, {"broadcast", site, src}, tensor, [&] {
    impl_->connection->broadcast(tensor, src)->wait();
  });
}

std::vector<at::Tensor> Group::all_gather(
    const at::Tensor& tensor,
    CallSite site) const {
  detail::require_dense("all_gather", tensor);
  if (size() == 1) return {tensor.detach()};
  return run(*impl_, {"all_gather", site}, tensor, [&] {
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
  // Shapes first, as bytes, since even the number of dimensions may differ.
  const std::string dtype = c10::toString(tensor.scalar_type());
  std::string shape = dtype + ":";
  for (const std::int64_t extent : tensor.sizes())
    shape += format("{},", extent);
  const std::vector<std::string> shapes = all_gather_bytes(shape, site);
  return run(
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
                "[comm] all_gather_uneven was given {} on this rank and {} on "
                "rank {}; convert one of them",
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
  require_rank(*impl_, "gather", dst);
  if (size() == 1) return {tensor.detach()};
  return run(*impl_, {"gather", site, dst}, tensor, [&] {
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
        "[comm] reduce_scatter was given a tensor of shape {} for {} ranks; "
        "dimension 0 must divide evenly, so pad it",
        tensor.sizes(),
        size()));
  }
  if (size() == 1) return tensor.detach().clone();
  return run(*impl_, {"reduce_scatter", site}, tensor, [&] {
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
  require_rank(*impl_, "scatter", src);
  if (rank() == src) {
    require_parts(*impl_, "scatter", parts.size());
    for (const at::Tensor& part : parts) {
      detail::require_dense("scatter", part);
      if (part.sizes() != output.sizes() ||
          part.scalar_type() != output.scalar_type()) {
        throw ConfigError(format(
            "[comm] scatter was given a part of {} for an output of {}; dtype "
            "and shape must be equal",
            describe(part),
            describe(output)));
      }
    }
  }
  if (size() == 1) {
    const at::NoGradGuard no_grad;
    output.detach().copy_(parts[0]);
    return;
  }
  run(*impl_, {"scatter", site, src}, output, [&] {
    std::vector<at::Tensor> inputs;
    if (rank() == src) inputs.assign(parts.begin(), parts.end());
    impl_->connection->scatter(output, inputs, src)->wait();
  });
}

std::vector<at::Tensor> Group::all_to_all(
    std::span<const at::Tensor> parts,
    CallSite site) const {
  require_parts(*impl_, "all_to_all", parts.size());
  for (const at::Tensor& part : parts) {
    detail::require_dense("all_to_all", part);
    const bool alike = part.dim() == parts[0].dim() && part.dim() > 0 &&
        part.scalar_type() == parts[0].scalar_type() &&
        part.sizes().slice(1) == parts[0].sizes().slice(1);
    if (!alike) {
      throw ConfigError(format(
          "[comm] all_to_all was given parts of {} and {}; they may differ in "
          "dimension 0 only, and must have one",
          describe(parts[0]),
          describe(part)));
    }
  }
  if (size() == 1) return {parts[0].detach()};
  const at::Tensor& like = parts[0];
  const std::string detail =
      format("{} {}", c10::toString(like.scalar_type()), like.sizes().slice(1));
  return run(*impl_, {"all_to_all", site}, detail, [&] {
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
  require_rank(*impl_, "send", dst);
  require_tag("send", tag);
  if (dst == rank()) {
    throw ConfigError(format(
        "[comm] rank {} was asked to send to itself; copy instead", dst));
  }
  if (tensor.numel() == 0) return;
  run_message(*impl_, "send", dst, [&] {
    impl_->connection->send(tensor, dst, tag)->wait();
  });
}

void Group::recv(const at::Tensor& tensor, int src, int tag) const {
  detail::require_dense("recv", tensor);
  require_rank(*impl_, "recv", src);
  require_tag("recv", tag);
  if (src == rank()) {
    throw ConfigError(format(
        "[comm] rank {} was asked to receive from itself; copy instead", src));
  }
  if (tensor.numel() == 0) return;
  run_message(*impl_, "recv", src, [&] {
    impl_->connection->receive(tensor, src, tag)->wait();
  });
}

void Group::barrier(CallSite site) const {
  if (size() == 1) return;
  run(*impl_, {"barrier", site}, "", [&] {
    impl_->connection->barrier()->wait();
  });
}

void Group::monitored_barrier(std::chrono::milliseconds timeout, CallSite site)
    const {
  if (size() == 1) return;
  run(*impl_, {"monitored_barrier", site}, "", [&] {
    impl_->connection->monitored_barrier(timeout);
  });
}

std::string
Group::broadcast_bytes(std::string_view bytes, int src, CallSite site) const {
  require_rank(*impl_, "broadcast_bytes", src);
  if (size() == 1) return std::string(bytes);
  return run(
      *impl_, {"broadcast_bytes", site, src}, format("from {}", src), [&] {
        const at::Tensor length =
            at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
        impl_->connection->broadcast(length, src)->wait();
        const auto count = length.item<std::int64_t>();
        const at::Tensor content =
            rank() == src ? from_text(bytes) : at::empty({count}, at::kByte);
        if (count > 0) impl_->connection->broadcast(content, src)->wait();
        return to_text(content);
      });
}

std::vector<std::string> Group::all_gather_bytes(
    std::string_view bytes,
    CallSite site) const {
  if (size() == 1) return {std::string(bytes)};
  return run(*impl_, {"all_gather_bytes", site}, "", [&] {
    const at::Tensor length =
        at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
    const at::Tensor lengths = at::empty({size()}, at::kLong);
    impl_->connection->all_gather(lengths, length)->wait();
    const auto longest = lengths.max().item<std::int64_t>();
    const at::Tensor padded = at::zeros({longest}, at::kByte);
    padded.narrow(0, 0, static_cast<std::int64_t>(bytes.size()))
        .copy_(from_text(bytes));
    const at::Tensor output = at::empty({size() * longest}, at::kByte);
    if (longest > 0) impl_->connection->all_gather(output, padded)->wait();
    std::vector<std::string> all;
    for (int peer = 0; peer < size(); ++peer) {
      all.push_back(to_text(output.narrow(
          0, peer * longest, lengths.data_ptr<std::int64_t>()[peer])));
    }
    return all;
  });
}

std::string Group::scatter_bytes(
    std::span<const std::string> parts,
    int src,
    CallSite site) const {
  require_rank(*impl_, "scatter_bytes", src);
  if (rank() == src) require_parts(*impl_, "scatter_bytes", parts.size());
  if (size() == 1) return parts[0];
  std::vector<at::Tensor> mine(
      static_cast<std::size_t>(size()), at::empty({0}, at::kByte));
  if (rank() == src) {
    std::transform(parts.begin(), parts.end(), mine.begin(), from_text);
  }
  return to_text(
      all_to_all(mine, site)[static_cast<std::size_t>(src)].contiguous());
}

}  // namespace accelerate
