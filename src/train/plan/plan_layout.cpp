#include <accelerate/accelerator_processes.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "base/available_memory.h"
#include "train/session.h"

namespace accelerate {

namespace {

using Clock = std::chrono::steady_clock;

// Seconds of `call`: the least of several, after one that warms up, all ranks at
// once.
double seconds_of(const World& world, const std::function<void()>& call) {
  call();
  double least = 0;
  for (int i = 0; i < 5; ++i) {
    world.wait_for_everyone();
    const auto begin = Clock::now();
    call();
    const std::chrono::duration<double> taken = Clock::now() - begin;
    if (i == 0 || taken.count() < least) least = taken.count();
  }
  return std::max(least, 1e-9);
}

// The mean over the ranks, so that all plan with the same numbers.
double mean_over(const World& world, double value) {
  const at::Tensor sum = at::full({}, value, at::kDouble);
  world.group().all_reduce(sum);
  return sum.item<double>() / world.size();
}

// What an all-reduce tells of a link: a step's latency, and the bytes per second
// that a rank sends. `share`: of a processor, that a rank has for copying; 1
// where ranks have links of their own.
LinkSpeed measure_link(const World& world, const Group& group, double share) {
  constexpr std::int64_t kElements = 1 << 20;
  const at::Device device = world.device();
  const at::Tensor small = at::zeros({1}, at::TensorOptions().device(device));
  const at::Tensor large =
      at::zeros({kElements}, at::TensorOptions().device(device));
  const double latency = seconds_of(world, [&] { group.all_reduce(small); });
  const double whole = seconds_of(world, [&] { group.all_reduce(large); });
  const double n = group.size();
  const double sent = 2 * 4.0 * static_cast<double>(kElements) * (n - 1) / n;
  const double steps = 2 * std::max(1.0, std::ceil(std::log2(n)));
  return {
      mean_over(world, latency) / steps,
      sent / std::max(1e-9, mean_over(world, whole - latency)) / share};
}

}  // namespace

ClusterSpeeds AcceleratorProcesses::measure_cluster() const {
  const at::NoGradGuard no_grad;
  const World& world = this->world();
  const bool is_on_host = world.device().is_cpu();
  const auto options = at::TensorOptions().device(world.device());
  ClusterSpeeds cluster;
  cluster.ranks_per_node = std::max(1, world.local_size());
  double share = 1;
  if (is_on_host) {
    cluster.shared_processors =
        std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    share =
        static_cast<double>(cluster.shared_processors) / cluster.ranks_per_node;
    const auto free = detail::available_memory();
    if (free) {
      cluster.memory_bytes =
          *free / static_cast<std::uint64_t>(cluster.ranks_per_node);
    }
  }
  constexpr std::int64_t kSide = 384, kLong = 1 << 22;
  const auto product = [&](at::ScalarType dtype) {
    const at::Tensor a = at::randn({kSide, kSide}, options).to(dtype);
    const double seconds =
        seconds_of(world, [&] { static_cast<void>(at::mm(a, a)); });
    return mean_over(world, 2.0 * kSide * kSide * kSide / seconds) / share;
  };
  cluster.fp32_flops = product(at::kFloat);
  cluster.flops = product(at::kBFloat16);
  const at::Tensor numbers = at::zeros({kLong}, options);
  cluster.memory_bytes_per_second =
      mean_over(
          world,
          2.0 * 4 * kLong / seconds_of(world, [&] { numbers.add_(1); })) /
      share;
  const at::Tensor few = at::zeros({8}, options);
  constexpr int kCalls = 200;
  cluster.seconds_per_operator = mean_over(
                                     world,
                                     seconds_of(
                                         world,
                                         [&] {
                                           for (int i = 0; i < kCalls; ++i)
                                             few.add_(1);
                                         })) /
      kCalls * share;
  if (world.size() == 1) return cluster;
  const LinkSpeed link = measure_link(world, world.group(), share);
  cluster.inside_node = cluster.between_nodes = link;
  const bool spans_nodes = world.size() > world.local_size();
  if (!spans_nodes || world.local_size() == 1) return cluster;
  // The ranks of a node are consecutive.
  std::vector<int> neighbours;
  for (int rank = 0; rank < world.local_size(); ++rank)
    neighbours.push_back(world.rank() - world.local_rank() + rank);
  cluster.inside_node = measure_link(world, world.new_group(neighbours), share);
  return cluster;
}

LayoutPlan AcceleratorProcesses::plan(
    const TransformerShape& shape,
    const LayoutPlanOptions& options) const {
  LayoutPlanOptions own = options;
  if (own.num_ranks == 0) own.num_ranks = num_processes();
  if (!own.cluster) own.cluster = measure_cluster();
  return plan_layout(shape, own);
}

}  // namespace accelerate
