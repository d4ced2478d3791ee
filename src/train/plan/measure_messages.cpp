#include "train/plan/measure_messages.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "comm/group/p2p_batch.h"

namespace accelerate::detail {

namespace {

std::function<void()> computing_between(
    const World& world,
    const ClusterSpeeds& cluster) {
  constexpr double kSeconds = 5e-4;  // about what a layer's part takes
  if (!world.device().is_cpu()) return [] {};
  const auto size = static_cast<std::int64_t>(
      std::clamp(std::cbrt(kSeconds * cluster.fp32_flops / 2), 16.0, 2048.0));
  const at::Tensor a = at::ones({size, size}), b = at::ones({size, size});
  return [a, b] { static_cast<void>(a.mm(b)); };
}

}  // namespace

ClockedMessages::ClockedMessages(
    const World& world,
    const ClusterSpeeds& cluster,
    double seconds)
    : clocked_(world, seconds),
      compute_(computing_between(world, cluster)),
      computing_(clocked_.seconds_of(compute_)) {}

double ClockedMessages::seconds_of(const std::function<void()>& call) {
  const double both = clocked_.seconds_of([&] {
    compute_();
    call();
  });
  // Processors can have become faster or slower meanwhile.
  const double before =
      std::exchange(computing_, clocked_.seconds_of(compute_));
  return std::max(both - (before + computing_) / 2, 0.0);
}

double ClockedMessages::longest_of(const std::function<void()>& call) {
  const double alone = clocked_.seconds_of(call);
  return std::max(alone, seconds_of(call));
}

LinkSpeed measure_link(
    const World& world,
    const Group& group,
    double share,
    ClockedMessages& messages) {
  constexpr std::int64_t kElements = 1 << 20;
  const auto options = at::TensorOptions().device(world.device());
  const at::Tensor small = at::zeros({1}, options);
  const at::Tensor large = at::zeros({kElements}, options);
  const double latency = messages.longest_of([&] { group.all_reduce(small); });
  const double whole = messages.seconds_of([&] { group.all_reduce(large); });
  const double n = group.size();
  const double sent = 2 * 4.0 * static_cast<double>(kElements) * (n - 1) / n;
  const double steps = 2 * std::max(1.0, std::ceil(std::log2(n)));
  return {latency / steps, sent / std::max(1e-9, whole - latency) / share};
}

double measure_message(const World& world, ClockedMessages& messages) {
  const Group& group = world.group();
  const at::Tensor sent = at::zeros({1});
  std::vector<at::Tensor> received;
  for (int rank = 0; rank < group.size(); ++rank)
    received.push_back(at::zeros({1}));
  const auto exchange = [&] {
    P2PBatch batch(group, "timing messages");
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank()) continue;
      batch.receive(received[static_cast<std::size_t>(rank)], rank, 0);
      batch.send(sent, rank, 0);
    }
    batch.wait();
  };
  return messages.longest_of(exchange) / (group.size() - 1);
}

}  // namespace accelerate::detail
