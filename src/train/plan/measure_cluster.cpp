#include <accelerate/accelerator_processes.h>
#include <accelerate/model_device_map.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>

#include "base/machine/available_memory.h"
#include "big_model/model/synchronize.h"
#include "comm/transport/adapters/p2p_batch.h"
#include "planning/layout/layer_seconds.h"
#include "planning/layout/model_costs.h"
#include "train/plan/layer_parts.h"
#include "train/session.h"

namespace accelerate {

namespace {

using at::Tensor;
using detail::LayerParts;
using Clock = std::chrono::steady_clock;

// The mean over the ranks, so that all plan with the same numbers.
double mean_over(const World& world, double value) {
  const Tensor sum = at::full({}, value, at::kDouble).to(world.device());
  world.group().all_reduce(sum);
  return sum.item<double>() / world.size();
}

// What this rank may use of its device's memory; -1 if that does not say.
std::int64_t own_memory(const World& world) {
  if (world.device().is_cpu()) {
    const auto free = detail::available_memory();
    return free
        ? static_cast<std::int64_t>(*free) / std::max(1, world.local_size())
        : -1;
  }
  for (const auto& [device, size] : get_max_memory()) {
    if (device.index() == world.device().index()) return size.bytes();
  }
  return -1;
}

// The memory of the rank that has least; nothing if some device does not say.
std::optional<std::uint64_t> least_memory(const World& world) {
  const Tensor least =
      at::full({}, own_memory(world), at::kLong).to(world.device());
  world.group().all_reduce(least, ReduceOp::min);
  const auto bytes = least.item<std::int64_t>();
  if (bytes < 0) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

/// Times calls that all ranks make at once. A round lasts many of the turns that
/// ranks take on shared processors, and ends when the last rank has ended: a
/// single call may have been lucky.
class Clocked {
 public:
  explicit Clocked(const World& world) : world_(world) {}

  // Seconds of one call, the same on all ranks.
  double seconds_of(const std::function<void()>& call) const {
    constexpr double kRoundSeconds = 0.05;
    constexpr int kRounds = 3;
    round(1, call);
    const double first = round(1, call);
    const int count =
        static_cast<int>(std::clamp(kRoundSeconds / first, 1.0, 1000.0));
    std::vector<double> seconds;
    for (int i = 0; i < kRounds; ++i) seconds.push_back(round(count, call));
    std::sort(seconds.begin(), seconds.end());
    return seconds[kRounds / 2];
  }

 private:
  double round(int count, const std::function<void()>& call) const {
    detail::synchronize(world_.device());
    world_.wait_for_everyone();
    const auto begin = Clock::now();
    for (int i = 0; i < count; ++i) call();
    detail::synchronize(world_.device());
    world_.wait_for_everyone();
    const std::chrono::duration<double> taken = Clock::now() - begin;
    return std::max(1e-9, mean_over(world_, taken.count()) / count);
  }

  const World& world_;
};

// What an all-reduce tells of a link: a step's latency, and the bytes per second
// that a rank sends. `share`: of a processor, that a rank has for copying; 1
// where ranks have links of their own.
LinkSpeed measure_link(const World& world, const Group& group, double share) {
  constexpr std::int64_t kElements = 1 << 20;
  const auto options = at::TensorOptions().device(world.device());
  const Tensor small = at::zeros({1}, options);
  const Tensor large = at::zeros({kElements}, options);
  const Clocked clocked(world);
  const double latency = clocked.seconds_of([&] { group.all_reduce(small); });
  const double whole = clocked.seconds_of([&] { group.all_reduce(large); });
  const double n = group.size();
  const double sent = 2 * 4.0 * static_cast<double>(kElements) * (n - 1) / n;
  const double steps = 2 * std::max(1.0, std::ceil(std::log2(n)));
  return {latency / steps, sent / std::max(1e-9, whole - latency) / share};
}

// What a message between two ranks takes while a rank exchanges some with all
// others, as those of shards do.
double measure_message(const World& world) {
  const Group& group = world.group();
  const Tensor sent = at::zeros({1});
  std::vector<Tensor> received;
  for (int rank = 0; rank < group.size(); ++rank)
    received.push_back(at::zeros({1}));
  const double all = Clocked(world).seconds_of([&] {
    detail::P2PBatch batch(group, "timing messages");
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank()) continue;
      batch.receive(received[static_cast<std::size_t>(rank)], rank, 0);
      batch.send(sent, rank, 0);
    }
    batch.wait();
  });
  return all / (group.size() - 1);
}

// Sizes like the model's at which a forward and backward of a layer takes
// a moment.
TransformerShape measured_shape(TransformerShape shape, bool is_on_host) {
  const std::int64_t most = is_on_host ? 1024 : 8192;
  const std::int64_t most_experts = 8;
  shape.num_dense_layers = 0;
  if (shape.num_experts > 0) {
    shape.num_experts = std::min(shape.num_experts, most_experts);
    shape.top_k = std::min(shape.top_k, shape.num_experts);
  }
  shape = detail::complete_shape(std::move(shape));
  const std::int64_t ratio =
      std::max<std::int64_t>(1, shape.intermediate_size / shape.hidden_size);
  if (shape.hidden_size > most) {
    shape.head_size = std::min<std::int64_t>(shape.head_size, 128);
    shape.num_heads = most / shape.head_size;
    shape.hidden_size = most;
    shape.intermediate_size = most * std::min<std::int64_t>(ratio, 4);
    shape.expert_intermediate_size =
        std::min(shape.expert_intermediate_size, shape.intermediate_size);
  }
  // Halves of it are copied.
  shape.hidden_size += shape.hidden_size % 2;
  return shape;
}

// How fast AdamW steps on `parameters`: bytes per second that it reads and
// writes, and what each of them costs besides, as tiny ones tell.
void measure_adamw(
    const Clocked& clocked,
    const std::vector<Tensor>& parameters,
    double share,
    ClusterSpeeds& cluster) {
  double num_elements = 0;
  std::vector<Tensor> tiny;
  for (const Tensor& each : parameters) {
    num_elements += static_cast<double>(each.numel());
    tiny.push_back(at::zeros({1}, each.options()).requires_grad_());
    tiny.back().mutable_grad() = at::zeros({1}, each.options());
  }
  const auto seconds_of = [&](const std::vector<Tensor>& all) {
    torch::optim::AdamW adamw(all);
    return share * clocked.seconds_of([&] { adamw.step(); });
  };
  const double least = seconds_of(tiny);
  const double all = seconds_of(parameters);
  cluster.seconds_per_stepped_parameter =
      std::min(least, all) / static_cast<double>(parameters.size());
  cluster.optimizer_bytes_per_second = detail::optimizer_bytes("adamw") *
      num_elements / std::max(all - least, 0.1 * all);
}

// What a router with its experts reaches, which take so long for `tokens` tokens.
double expert_flops(
    const detail::LayerCosts& layer,
    double tokens,
    double seconds,
    const ClusterSpeeds& cluster) {
  // What plans count besides, as with any layer.
  const double touching =
      3 * layer.touched / 2 * tokens * 4 / cluster.memory_bytes_per_second;
  return 3 * layer.expert_flops * tokens /
      std::max(seconds - touching, 0.1 * seconds);
}

// How many times longer layers take together than their parts make of it, in
// micro-batches of several sizes: caches keep less of larger ones, and weights
// count more in smaller ones.
std::vector<LayerSlowdown> measure_slowdowns(
    const Clocked& clocked,
    const TransformerShape& shape,
    std::int64_t length,
    const at::TensorOptions& options,
    const ClusterSpeeds& cluster,
    double share) {
  constexpr int kLayers = 4;
  constexpr std::int64_t kMostTokens = 8192;
  constexpr double kLongest = 0.3;
  const detail::ModelCosts model = detail::model_costs(shape);
  LayoutPlanOptions plan;
  plan.cluster = cluster;
  plan.sequence_length = length;
  plan.precision = FloatType::fp32;
  const auto num_layers =
      static_cast<int>(std::min<std::int64_t>(shape.num_layers, kLayers));
  std::vector<LayerSlowdown> found;
  for (std::int64_t samples = 1; samples * length <= kMostTokens;
       samples *= 2) {
    TrainingLayout layout;
    layout.micro_batch = samples;
    const double seconds = clocked.seconds_of(
        LayerParts(shape, samples, length, options).stack(num_layers));
    const double expected = 3 * num_layers *
        detail::forward_seconds({model, layout, plan}, model.expert_layer);
    found.push_back(
        {static_cast<double>(samples * length), seconds * share / expected});
    if (seconds > kLongest) break;
  }
  return found;
}

// The speeds of a whole processor, from those of ranks that each have a `share` of
// one and all compute at once.
void measure_computing(
    const World& world,
    const TransformerShape& given,
    std::int64_t sequence_length,
    double share,
    ClusterSpeeds& cluster) {
  const at::AutoGradMode with_gradients(true);
  const bool is_on_host = world.device().is_cpu();
  const Clocked clocked(world);
  const TransformerShape shape = measured_shape(given, is_on_host);
  const auto options = at::TensorOptions().device(world.device());
  const std::int64_t most_tokens = is_on_host ? 512 : 8192;
  const std::int64_t length =
      std::clamp<std::int64_t>(sequence_length, 16, 2 * most_tokens);
  const LayerParts parts(
      shape,
      std::max<std::int64_t>(1, most_tokens / length),
      length,
      options.dtype(at::kFloat));
  const LayerParts halves(
      shape, 1, std::min(length, most_tokens), options.dtype(at::kBFloat16));

  // A tiny layer takes no time but its operators' overhead: once in forward, twice
  // in backward.
  TransformerShape small;
  small.num_layers = small.num_heads = small.vocabulary = 1;
  small.hidden_size = 8;
  small = detail::complete_shape(small);
  const double overhead = clocked.seconds_of(
      LayerParts(small, 1, 2, options.dtype(at::kFloat)).whole());
  cluster.seconds_per_operator =
      overhead / (3 * detail::kLayerOperators) * share;
  const auto without_overhead = [&](double seconds, double operators) {
    const double less = overhead * operators / detail::kLayerOperators;
    return std::max(seconds - less, 0.1 * seconds) * share;
  };

  cluster.fp32_flops = parts.product_flops() /
      without_overhead(clocked.seconds_of(parts.product()), 1);
  cluster.flops = halves.product_flops() /
      without_overhead(clocked.seconds_of(halves.product()), 1);
  const detail::ModelCosts model = detail::model_costs(shape);
  const detail::LayerCosts& costs = model.dense_layer;
  const auto tokens = static_cast<double>(parts.tokens());
  cluster.attention_flops = 3 * costs.attention_flops_per_position *
      static_cast<double>(length) * tokens /
      without_overhead(clocked.seconds_of(parts.attention()), 1);
  cluster.memory_bytes_per_second = 3 * costs.touched * tokens * 4 /
      without_overhead(clocked.seconds_of(parts.rest()), 10);
  if (shape.num_experts > 0) {
    cluster.expert_flops = expert_flops(
        model.expert_layer,
        tokens,
        without_overhead(
            clocked.seconds_of(parts.experts()),
            detail::kExpertOperators * static_cast<double>(shape.num_experts)),
        cluster);
  }
  const std::int64_t num_classes =
      std::min<std::int64_t>(shape.vocabulary, is_on_host ? 32768 : 131072);
  cluster.loss_bytes_per_second = 3 * detail::kLogitTouches * tokens *
      static_cast<double>(num_classes) * 4 /
      without_overhead(clocked.seconds_of(parts.loss(num_classes)), 4);
  measure_adamw(clocked, parts.parameters(), share, cluster);
  cluster.layer_slowdowns = measure_slowdowns(
      clocked, shape, length, options.dtype(at::kFloat), cluster, share);
}

}  // namespace

ClusterSpeeds AcceleratorProcesses::measure_cluster(
    const TransformerShape& shape,
    std::int64_t sequence_length) const {
  const at::NoGradGuard no_grad;
  const World& world = this->world();
  ClusterSpeeds cluster;
  cluster.ranks_per_node = std::max(1, world.local_size());
  double share = 1;
  if (world.device().is_cpu()) {
    cluster.shared_processors =
        std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    share =
        static_cast<double>(cluster.shared_processors) / cluster.ranks_per_node;
  }
  if (const auto bytes = least_memory(world)) cluster.memory_bytes = *bytes;
  measure_computing(world, shape, sequence_length, share, cluster);
  if (world.size() == 1) return cluster;
  cluster.inside_node = cluster.between_nodes =
      measure_link(world, world.group(), share);
  if (world.device().is_cpu())
    cluster.seconds_per_message = measure_message(world);
  const bool spans_nodes = world.size() > world.local_size();
  if (!spans_nodes || world.local_size() == 1) return cluster;
  // The ranks of a node are consecutive.
  std::vector<int> neighbours;
  for (int rank = 0; rank < world.local_size(); ++rank)
    neighbours.push_back(world.rank() - world.local_rank() + rank);
  cluster.inside_node = measure_link(world, world.new_group(neighbours), share);
  return cluster;
}

ClusterSpeeds AcceleratorProcesses::measure_cluster() const {
  return measure_cluster(
      {.num_layers = 1, .hidden_size = 512, .num_heads = 8, .vocabulary = 1},
      /*sequence_length=*/256);
}

}  // namespace accelerate
