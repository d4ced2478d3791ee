#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "comm/transport/hierarchy/island_operations.h"

namespace accelerate::detail {

namespace {

CollectiveStamp
moved_stamp(const at::Tensor& tensor, CollectiveKind kind, int root = -1) {
  return host_tensor(tensor).stamp(kind, root);
}

// Begin and size of share number `index` if `rows` are divided into `count`
// equal shares.
std::pair<std::int64_t, std::int64_t>
share_of(std::int64_t rows, std::size_t index, std::size_t count) {
  const auto at = [&](std::size_t i) {
    return rows * static_cast<std::int64_t>(i) /
        static_cast<std::int64_t>(count);
  };
  return {at(index), at(index + 1) - at(index)};
}

}  // namespace

void IslandOperations::broadcast(const at::Tensor& tensor, int src) {
  agree(moved_stamp(tensor, CollectiveKind::broadcast, src));
  const at::Tensor values = tensor.detach().reshape({-1});
  const std::size_t from = islands().island_of(src);
  const bool is_here = links_.island() == from;
  const std::size_t lanes =
      num_lanes(static_cast<std::int64_t>(values.nbytes()));
  if (is_here && inside_)
    inside_->broadcast(values, islands().local_rank(src))->wait();
  const auto part = [&](std::size_t lane) {
    const auto [begin, length] = share_of(values.numel(), lane, lanes);
    return values.narrow(0, begin, length);
  };
  const auto own_lane = static_cast<std::size_t>(links_.local_rank());
  if (own_lane < lanes) {
    links_.broadcast(part(own_lane), from, links_.local_rank());
  }
  if (is_here || !inside_) return;
  std::vector<Work> works;
  for (std::size_t lane = 0; lane < lanes; ++lane)
    works.push_back(inside_->broadcast(part(lane), static_cast<int>(lane)));
  for (const Work& work : works) work->wait();
}

at::Tensor IslandOperations::empty_block(
    const at::Tensor& output,
    std::size_t island) const {
  const auto& members = islands().members(island);
  const auto count = static_cast<std::int64_t>(members.size());
  // Received directly into place if that is one block.
  if (members.back() - members.front() + 1 == count)
    return output.narrow(0, members.front(), count);
  return at::empty({count, output.size(1)}, output.options());
}

void IslandOperations::place(
    const at::Tensor& output,
    const std::vector<at::Tensor>& blocks) const {
  for (std::size_t island = 0; island < blocks.size(); ++island) {
    const auto& members = islands().members(island);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const at::Tensor from = blocks[island][static_cast<std::int64_t>(i)];
      const at::Tensor to = output[members[i]];
      if (from.data_ptr() != to.data_ptr()) to.copy_(from);
    }
  }
}

void IslandOperations::all_gather(
    const at::Tensor& output,
    const at::Tensor& input) {
  agree(moved_stamp(input, CollectiveKind::all_gather));
  if (input.numel() == 0) return;
  const at::Tensor rows = output.detach().view(
      {static_cast<std::int64_t>(islands().num_ranks()), input.numel()});
  std::vector<at::Tensor> blocks;
  for (std::size_t island = 0; island < islands().count(); ++island)
    blocks.push_back(empty_block(rows, island));
  const at::Tensor& own = blocks[links_.island()];
  const at::Tensor values = input.detach().reshape({-1});
  if (inside_) {
    inside_->all_gather(own, values)->wait();
  } else {
    own[0].copy_(values);
  }
  exchange_blocks(
      rows,
      blocks,
      // This number is equal on all islands, though their own blocks may differ
      // in size.
      num_lanes(static_cast<std::int64_t>(rows.nbytes() / islands().count())));
}

// Each lane exchanges some rows of each island's block.
void IslandOperations::exchange_blocks(
    const at::Tensor& output,
    std::vector<at::Tensor> blocks,
    std::size_t lanes) {
  const auto rows_of = [&](std::size_t island, std::size_t lane) {
    const auto [begin, length] = share_of(blocks[island].size(0), lane, lanes);
    return blocks[island].narrow(0, begin, length);
  };
  const auto own_lane = static_cast<std::size_t>(links_.local_rank());
  if (own_lane < lanes) {
    IslandLinks::Messages messages(links_);
    for (std::size_t island = 0; island < blocks.size(); ++island) {
      if (island == links_.island()) continue;
      const int peer = islands().members(island)[own_lane];
      messages.receive(rows_of(island, own_lane), peer);
      messages.send(rows_of(links_.island(), own_lane), peer);
    }
    messages.wait();
  }
  std::vector<Work> works;
  for (std::size_t island = 0; inside_ && island < blocks.size(); ++island) {
    if (island == links_.island()) continue;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      works.push_back(
          inside_->broadcast(rows_of(island, lane), static_cast<int>(lane)));
    }
  }
  for (const Work& work : works) work->wait();
  place(output, blocks);
}

void IslandOperations::gather(
    const std::vector<at::Tensor>& outputs,
    const at::Tensor& input,
    int dst) {
  agree(moved_stamp(input, CollectiveKind::gather, dst));
  const bool is_agent = links_.local_rank() == agent_here(dst);
  const bool is_root = links_.rank() == dst;
  const auto& members = links_.own_members();
  // One row per rank of this island.
  std::vector<at::Tensor> block;
  for (std::size_t i = 0; is_agent && i < members.size(); ++i) {
    block.push_back(
        is_root ? outputs[static_cast<std::size_t>(members[i])].detach()
                : at::empty_like(input));
  }
  if (inside_) {
    inside_->gather(block, input.detach(), agent_here(dst))->wait();
  } else {
    block[0].copy_(input.detach());
  }
  if (!is_agent) return;
  IslandLinks::Messages messages(links_);
  if (!is_root) {
    for (const at::Tensor& values : block) messages.send(values, dst);
  } else {
    for (std::size_t island = 0; island < islands().count(); ++island) {
      if (island == links_.island()) continue;
      for (const int member : islands().members(island)) {
        messages.receive(
            outputs[static_cast<std::size_t>(member)], agent_rank(island, dst));
      }
    }
  }
  messages.wait();
}

void IslandOperations::scatter(
    const at::Tensor& output,
    const std::vector<at::Tensor>& inputs,
    int src) {
  agree(moved_stamp(output, CollectiveKind::scatter, src));
  const bool is_agent = links_.local_rank() == agent_here(src);
  const bool is_root = links_.rank() == src;
  IslandLinks::Messages messages(links_);
  std::vector<at::Tensor> block;
  for (std::size_t i = 0; is_agent && i < links_.own_members().size(); ++i) {
    const auto member = static_cast<std::size_t>(links_.own_members()[i]);
    block.push_back(is_root ? inputs[member].detach() : at::empty_like(output));
    if (!is_root) messages.receive(block.back(), src);
  }
  for (std::size_t island = 0; is_root && island < islands().count();
       ++island) {
    if (island == links_.island()) continue;
    for (const int member : islands().members(island)) {
      messages.send(
          inputs[static_cast<std::size_t>(member)], agent_rank(island, src));
    }
  }
  messages.wait();
  if (inside_) {
    inside_->scatter(output.detach(), block, agent_here(src))->wait();
  } else {
    output.detach().copy_(block[0]);
  }
}

void IslandOperations::all_to_all(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::vector<std::int64_t>& output_sizes,
    const std::vector<std::int64_t>& input_sizes) {
  CollectiveStamp stamp = moved_stamp(input, CollectiveKind::all_to_all);
  // Ranks may send different amounts.
  stamp.bytes = stamp.num_dims = 0;
  stamp.sizes = {};
  agree(stamp);
  const auto parts = [&](const at::Tensor& tensor,
                         const std::vector<std::int64_t>& sizes) {
    const auto count = static_cast<std::int64_t>(islands().num_ranks());
    if (sizes.empty()) return tensor.detach().chunk(count);
    return tensor.detach().split_with_sizes(sizes);
  };
  const std::vector<at::Tensor> from = parts(input, input_sizes);
  const std::vector<at::Tensor> to = parts(output, output_sizes);
  IslandLinks::Messages messages(links_);
  for (std::size_t island = 0; island < islands().count(); ++island) {
    if (island == links_.island()) continue;
    for (const int peer : islands().members(island)) {
      messages.receive(to[static_cast<std::size_t>(peer)], peer);
      messages.send(from[static_cast<std::size_t>(peer)], peer);
    }
  }
  if (inside_) {
    std::vector<at::Tensor> own_from, own_to;
    std::vector<std::int64_t> from_sizes, to_sizes;
    std::int64_t num_received = 0;
    for (const int peer : links_.own_members()) {
      own_from.push_back(from[static_cast<std::size_t>(peer)]);
      own_to.push_back(to[static_cast<std::size_t>(peer)]);
      from_sizes.push_back(own_from.back().numel());
      to_sizes.push_back(own_to.back().numel());
      num_received += to_sizes.back();
    }
    const at::Tensor received = at::empty({num_received}, output.options());
    inside_->all_to_all(received, at::cat(own_from), to_sizes, from_sizes)
        ->wait();
    const auto places = received.split_with_sizes(to_sizes);
    for (std::size_t i = 0; i < own_to.size(); ++i) own_to[i].copy_(places[i]);
  } else {
    const auto me = static_cast<std::size_t>(links_.rank());
    to[me].copy_(from[me]);
  }
  messages.wait();
}

}  // namespace accelerate::detail
