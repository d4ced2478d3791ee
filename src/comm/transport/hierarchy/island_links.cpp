#include "comm/transport/hierarchy/island_links.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <ATen/Functions.h>

#include "comm/transport/adapters/reduction_encoding.h"
#include "comm/transport/disagreement.h"
#include "comm/transport/shared_memory/memory/peers.h"
#include "comm/transport/shared_memory/operations/collective.h"
#include "comm/transport/shared_memory/operations/combine.h"

namespace accelerate::detail {

namespace {

// The first message of a collective between islands.
struct Greeting {
  CollectiveStamp stamp;
  std::uint64_t payload_bytes;
};

}  // namespace

IslandLinks::IslandLinks(
    std::shared_ptr<Connection> network,
    Islands islands,
    std::vector<int> world_ranks)
    : network_(std::move(network)),
      islands_(std::move(islands)),
      world_ranks_(std::move(world_ranks)) {}

void IslandLinks::Messages::send(const at::Tensor& tensor, int to) {
  if (tensor.numel() == 0) return;
  works_.push_back(
      links_.network_->send(as_bytes(tensor), to, kFirstReservedTag));
}

void IslandLinks::Messages::receive(const at::Tensor& tensor, int from) {
  if (tensor.numel() == 0) return;
  works_.push_back(
      links_.network_->receive(as_bytes(tensor), from, kFirstReservedTag));
}

void IslandLinks::Messages::wait() {
  for (const Work& work : works_) work->wait();
  works_.clear();
}

std::vector<at::Tensor> IslandLinks::meet(
    CollectiveStamp stamp,
    const at::Tensor& payload) {
  stamp.sequence = ++sequence_;
  constexpr auto kBytes =
      static_cast<std::int64_t>(sizeof(Greeting) + kMostPayload);
  const auto count = static_cast<std::int64_t>(islands_.count());
  const at::Tensor all = at::zeros({count, kBytes}, at::kByte);
  const auto greeting_of = [&](std::size_t index) {
    Greeting greeting{};
    std::memcpy(
        &greeting,
        all[static_cast<std::int64_t>(index)].data_ptr(),
        sizeof greeting);
    return greeting;
  };
  const at::Tensor own = all[static_cast<std::int64_t>(island())];
  const std::uint64_t bytes = payload.defined() ? payload.nbytes() : 0;
  const Greeting greeting{.stamp = stamp, .payload_bytes = bytes};
  std::memcpy(own.data_ptr(), &greeting, sizeof greeting);
  if (bytes > 0) {
    own.narrow(0, sizeof greeting, static_cast<std::int64_t>(bytes))
        .copy_(as_bytes(payload));
  }
  Messages messages(*this);
  for (std::size_t other = 0; other < islands_.count(); ++other) {
    if (other == island()) continue;
    messages.receive(
        all[static_cast<std::int64_t>(other)], lane_rank(other, 0));
    messages.send(own, lane_rank(other, 0));
  }
  messages.wait();
  std::vector<at::Tensor> payloads;
  for (std::size_t other = 0; other < islands_.count(); ++other) {
    const Greeting theirs = greeting_of(other);
    if (!(theirs.stamp == stamp)) {
      const auto name = [&](std::size_t index) {
        return std::to_string(
            world_ranks_[static_cast<std::size_t>(lane_rank(index, 0))]);
      };
      throw std::runtime_error(
          kSharedMemoryMark +
          describe_disagreement(
              {name(island()), describe(stamp)},
              {name(other), describe(theirs.stamp)}));
    }
    payloads.push_back(all[static_cast<std::int64_t>(other)].narrow(
        0,
        sizeof(Greeting),
        static_cast<std::int64_t>(
            std::min<std::uint64_t>(theirs.payload_bytes, kMostPayload))));
  }
  return payloads;
}

// Uses a binomial tree over the islands, counted from the one that has the
// values.
void IslandLinks::broadcast(
    const at::Tensor& bytes,
    std::size_t from,
    int lane) {
  const std::size_t count = islands_.count();
  const std::size_t position = (island() + count - from) % count;
  const auto rank_at = [&](std::size_t at) {
    return lane_rank((at + from) % count, lane);
  };
  std::size_t bit = 1;
  for (; bit < count; bit *= 2) {
    if ((position & bit) == 0) continue;
    Messages message(*this);
    message.receive(bytes, rank_at(position - bit));
    message.wait();
    break;
  }
  Messages messages(*this);
  for (bit /= 2; bit > 0; bit /= 2) {
    if (position + bit < count) messages.send(bytes, rank_at(position + bit));
  }
  messages.wait();
}

void IslandLinks::reduce_in_order(
    const at::Tensor& to,
    const std::vector<at::Tensor>& by_island,
    ReduceOp op) {
  const Combination how = combination_of(to.scalar_type(), op);
  std::vector<const void*> sources;
  for (const at::Tensor& values : by_island)
    sources.push_back(values.const_data_ptr());
  how.function(
      to.mutable_data_ptr(),
      sources.data(),
      static_cast<int>(sources.size()),
      to.nbytes() / how.element_bytes);
}

// Each island reduces one part for all islands, and sends them the result.
void IslandLinks::all_reduce(const at::Tensor& values, ReduceOp op, int lane) {
  const std::size_t count = islands_.count();
  const std::int64_t each =
      (values.numel() + static_cast<std::int64_t>(count) - 1) /
      static_cast<std::int64_t>(count);
  const auto part_of = [&](std::size_t index) {
    const std::int64_t begin =
        std::min(static_cast<std::int64_t>(index) * each, values.numel());
    return values.narrow(0, begin, std::min(each, values.numel() - begin));
  };
  const at::Tensor own = part_of(island());
  std::vector<at::Tensor> contributions(count);
  Messages messages(*this);
  for (std::size_t other = 0; other < count; ++other) {
    if (other == island()) {
      contributions[other] = own;
      continue;
    }
    contributions[other] = at::empty_like(own);
    messages.receive(contributions[other], lane_rank(other, lane));
    messages.send(part_of(other), lane_rank(other, lane));
  }
  messages.wait();
  reduce_in_order(own, contributions, op);
  for (std::size_t other = 0; other < count; ++other) {
    if (other == island()) continue;
    messages.receive(part_of(other), lane_rank(other, lane));
    messages.send(own, lane_rank(other, lane));
  }
  messages.wait();
}

}  // namespace accelerate::detail
