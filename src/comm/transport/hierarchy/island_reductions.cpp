#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "comm/transport/hierarchy/island_operations.h"

namespace accelerate::detail {

namespace {

// Smaller tensors are sent between islands by one rank per island.
constexpr std::int64_t kLaneBytes = std::int64_t{256} << 10U;

CollectiveStamp stamp_of_tensor(
    const at::Tensor& tensor,
    CollectiveKind kind,
    ReduceOp op = ReduceOp::sum,
    int root = -1) {
  CollectiveStamp stamp = host_tensor(tensor).stamp(kind, root);
  stamp.op = static_cast<std::uint8_t>(op);
  return stamp;
}

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().reshape({-1});
}

// Part `index` of `count` of a tensor of one dimension.
at::Tensor
part(const at::Tensor& values, std::size_t index, std::size_t count) {
  const auto number = static_cast<std::int64_t>(count);
  const std::int64_t each = (values.numel() + number - 1) / number;
  const std::int64_t begin =
      std::min(static_cast<std::int64_t>(index) * each, values.numel());
  return values.narrow(0, begin, std::min(each, values.numel() - begin));
}

}  // namespace

std::size_t IslandOperations::num_lanes(std::int64_t bytes) const {
  return bytes < kLaneBytes ? 1 : islands().num_lanes();
}

int IslandOperations::agent_of(std::size_t island, int root) const {
  return islands().island_of(root) == island ? islands().local_rank(root) : 0;
}

int IslandOperations::agent_rank(std::size_t island, int root) const {
  return islands().members(
      island)[static_cast<std::size_t>(agent_of(island, root))];
}

void IslandOperations::agree_inside(const CollectiveStamp& stamp) {
  if (inside_) inside_->agree(stamp);
}

void IslandOperations::agree(const CollectiveStamp& stamp) {
  agree_inside(stamp);
  if (links_.is_leader()) links_.meet(stamp);
  if (inside_) inside_->barrier()->wait();
}

void IslandOperations::barrier() {
  agree({.kind = static_cast<std::uint8_t>(CollectiveKind::barrier)});
}

void IslandOperations::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  const CollectiveStamp stamp =
      stamp_of_tensor(tensor, CollectiveKind::all_reduce, op);
  const at::Tensor values = flat(tensor);
  const auto bytes = static_cast<std::int64_t>(values.nbytes());
  if (bytes <= static_cast<std::int64_t>(IslandLinks::kMostPayload)) {
    agree_inside(stamp);
    if (inside_) inside_->reduce(values, op, 0)->wait();
    if (links_.is_leader()) {
      std::vector<at::Tensor> sums;
      for (const at::Tensor& sum : links_.meet(stamp, values))
        sums.push_back(sum.clone().view(values.scalar_type()));
      if (bytes > 0) IslandLinks::reduce_in_order(values, sums, op);
    }
    if (inside_) inside_->broadcast(values, 0)->wait();
    return;
  }
  agree(stamp);
  const std::size_t lanes = num_lanes(bytes);
  const auto lane = static_cast<std::size_t>(links_.local_rank());
  std::vector<Work> works;
  for (std::size_t i = 0; inside_ && i < lanes; ++i) {
    works.push_back(
        inside_->reduce(part(values, i, lanes), op, static_cast<int>(i)));
  }
  for (const Work& work : works) work->wait();
  if (lane < lanes) {
    links_.all_reduce(part(values, lane, lanes), op, static_cast<int>(lane));
  }
  works.clear();
  for (std::size_t i = 0; inside_ && i < lanes; ++i) {
    works.push_back(
        inside_->broadcast(part(values, i, lanes), static_cast<int>(i)));
  }
  for (const Work& work : works) work->wait();
}

void IslandOperations::reduce(const at::Tensor& tensor, ReduceOp op, int dst) {
  agree(stamp_of_tensor(tensor, CollectiveKind::reduce, op, dst));
  const int agent = agent_here(dst);
  const bool is_agent = links_.local_rank() == agent;
  const bool is_root = links_.rank() == dst;
  // Only the root's values may change.
  const at::Tensor sum =
      is_agent && !is_root && inside_ ? flat(tensor).clone() : flat(tensor);
  if (inside_) inside_->reduce(sum, op, agent)->wait();
  if (!is_agent) return;
  IslandLinks::Messages messages(links_);
  if (!is_root) {
    messages.send(sum, dst);
    messages.wait();
    return;
  }
  std::vector<at::Tensor> sums(islands().count());
  for (std::size_t island = 0; island < sums.size(); ++island) {
    if (island == links_.island()) {
      sums[island] = sum;
    } else {
      sums[island] = at::empty_like(sum);
      messages.receive(sums[island], agent_rank(island, dst));
    }
  }
  messages.wait();
  IslandLinks::reduce_in_order(sum, sums, op);
}

// On each island, one rank reduces the shard of one receiver: the receiver
// itself on its own island, the ranks in turn on others.
void IslandOperations::reduce_scatter(
    const at::Tensor& output,
    const at::Tensor& input,
    ReduceOp op) {
  agree(stamp_of_tensor(input, CollectiveKind::reduce_scatter, op));
  const auto size = static_cast<std::size_t>(islands().num_ranks());
  const auto sender_to = [&](std::size_t island, int receiver) {
    if (islands().island_of(receiver) == island)
      return islands().local_rank(receiver);
    return islands().local_rank(receiver) %
        static_cast<int>(islands().members(island).size());
  };
  const at::Tensor values = flat(input);
  std::vector<at::Tensor> shards;
  std::vector<Work> works;
  for (std::size_t receiver = 0; receiver < size; ++receiver) {
    const int sender = sender_to(links_.island(), static_cast<int>(receiver));
    at::Tensor shard = part(values, receiver, size);
    // The input keeps its values.
    if (sender == links_.local_rank() && inside_) shard = shard.clone();
    if (inside_) works.push_back(inside_->reduce(shard, op, sender));
    shards.push_back(std::move(shard));
  }
  for (const Work& work : works) work->wait();

  IslandLinks::Messages messages(links_);
  std::vector<at::Tensor> sums(islands().count());
  const int me = links_.rank();
  for (std::size_t island = 0; island < sums.size(); ++island) {
    const at::Tensor& own = shards[static_cast<std::size_t>(me)];
    if (island == links_.island()) {
      sums[island] = own;
      continue;
    }
    sums[island] = at::empty_like(own);
    const auto sender = static_cast<std::size_t>(sender_to(island, me));
    messages.receive(sums[island], islands().members(island)[sender]);
    for (const int receiver : islands().members(island)) {
      if (sender_to(links_.island(), receiver) == links_.local_rank())
        messages.send(shards[static_cast<std::size_t>(receiver)], receiver);
    }
  }
  messages.wait();
  if (output.numel() > 0) IslandLinks::reduce_in_order(flat(output), sums, op);
}

}  // namespace accelerate::detail
