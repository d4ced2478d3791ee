#include "pipeline/device_edges.h"

#include <ATen/Functions.h>

#include "base/text/text.h"
#include "comm/group/begun_exchange.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

DeviceEdges::DeviceEdges(
    const Group& ranks,
    at::Device device,
    const std::set<StageEdge>& all) {
  if (ranks.size() == 1 || !connects_devices(ranks, device)) return;
  // Both ends connect an edge at the same time. All ranks go through their edges
  // in the order of the set, so the first that is not connected has both.
  for (const StageEdge& edge : all) {
    const auto [from, to] = edge;
    if (ranks.rank() != from && ranks.rank() != to) continue;
    const bool sends = ranks.rank() == from;
    const Group group(make_group(
        ranks.impl()->world,
        format("{}, stages {} to {}", ranks.impl()->name, from, to),
        sends ? kEdgeSender : kEdgeReceiver,
        {ranks.world_ranks()[static_cast<std::size_t>(from)],
         ranks.world_ranks()[static_cast<std::size_t>(to)]}));
    groups_.emplace(edge, group);
    const at::Tensor token =
        at::zeros({1}, at::TensorOptions(at::kByte).device(device));
    std::vector<PeerMessage> sent, received;
    if (sends) {
      sent.push_back({token, kEdgeReceiver});
    } else {
      received.push_back({token, kEdgeSender});
    }
    BegunExchange::exchange(
        group, "connecting stages", std::move(sent), std::move(received))
        .wait();
  }
}

void DeviceEdges::abort() noexcept {
  for (const auto& [edge, group] : groups_) group.impl()->connection->abort();
  groups_.clear();
}

}  // namespace accelerate::detail
