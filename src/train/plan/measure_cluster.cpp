#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>

#include <accelerate/error.h>
#include <accelerate/model_device_map.h>
#include <accelerate/planner.h>
#include <accelerate/planning.h>
#include <accelerate/world.h>

#include "base/machine/available_memory.h"
#include "base/text/text.h"
#include "comm/group/begun_exchange.h"
#include "planning/layout/layer_program.h"
#include "planning/layout/model_costs.h"
#include "train/plan/clocked.h"
#include "train/plan/layer_parts.h"
#include "train/plan/measure_layers.h"
#include "train/session/session.h"

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

// Times messages between ranks, which compute meanwhile if they share
// processors: a rank whose message has arrived must wait for a processor,
// which takes longer the more ranks compute.
class ClockedMessages {
 public:
  // `cluster`: has the speed of products. Timing all messages takes about
  // `seconds`.
  ClockedMessages(
      const World& world,
      const ClusterSpeeds& cluster,
      double seconds)
      : clocked_(world, seconds),
        compute_(computing_between(world, cluster)),
        computing_(clocked_.seconds_of(compute_)) {}

  // Seconds that a call adds to the ranks' computation.
  [[nodiscard]] double seconds_of(const std::function<void()>& call) {
    const double both = clocked_.seconds_of([&] {
      compute_();
      call();
    });
    // Processors can have become faster or slower meanwhile.
    const double before =
        std::exchange(computing_, clocked_.seconds_of(compute_));
    return std::max(both - (before + computing_) / 2, 0.0);
  }

  // The longer of seconds_of() and the time of the call on idle ranks.
  [[nodiscard]] double longest_of(const std::function<void()>& call) {
    const double alone = clocked_.seconds_of(call);
    return std::max(alone, seconds_of(call));
  }

 private:
  Clocked clocked_;
  std::function<void()> compute_;
  double computing_;
};

// Measures a link by all-reduces: the latency of a step, and the bytes per
// second that a rank sends. `share`: a rank's share of a processor for
// copying; 1 if ranks have links of their own.
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

// Measures a message between two ranks while each rank exchanges messages with
// all others, as sharding does.
double measure_message(const World& world, ClockedMessages& messages) {
  const Group& group = world.group();
  const at::Tensor sent = at::zeros({1});
  std::vector<at::Tensor> received;
  for (int rank = 0; rank < group.size(); ++rank)
    received.push_back(at::zeros({1}));
  const auto exchange = [&] {
    std::vector<PeerMessage> sends, receives;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank()) continue;
      receives.push_back({received[static_cast<std::size_t>(rank)], rank, 0});
      sends.push_back({sent, rank, 0});
    }
    BegunExchange::messages(
        group, "timing messages", std::move(sends), std::move(receives))
        .wait();
  };
  return messages.longest_of(exchange) / (group.size() - 1);
}

}  // namespace

}  // namespace accelerate::detail

namespace accelerate {

namespace {

using at::Tensor;
using detail::Clocked;
using detail::ClockedMessages;
using detail::LayerParts;

// Bytes of its device's memory that this rank can use; -1 if unknown.
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

// The least memory of any rank; nullopt if a rank does not know its memory.
std::optional<std::uint64_t> least_memory(const World& world) {
  const Tensor least =
      at::full({}, own_memory(world), at::kLong).to(world.device());
  world.group().all_reduce(least, ReduceOp::min);
  const auto bytes = least.item<std::int64_t>();
  if (bytes < 0) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

// Sizes like the model's, but small enough for a fast forward and backward of a
// layer.
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
  // The size must be even, since halves of it are copied.
  shape.hidden_size += shape.hidden_size % 2;
  return shape;
}

// Measures how fast AdamW steps on `parameters`: bytes per second that it reads
// and writes, and the fixed cost per parameter, found with tiny ones.
void measure_adamw(
    Clocked& clocked,
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
  cluster.measured.seconds_per_stepped_parameter =
      std::min(least, all) / static_cast<double>(parameters.size());
  cluster.optimizer_bytes_per_second = detail::optimizer_bytes("adamw") *
      num_elements / std::max(all - least, 0.1 * all);
}

// Derives the speed of experts' products and the cost of routing a token from
// the times of a router with experts, and with experts of a fraction of their
// size.
void read_experts(
    const detail::LayerCosts& layer,
    double tokens,
    double seconds,
    double seconds_of_smaller,
    double fraction,
    ClusterSpeeds& cluster) {
  // Memory traffic that plans count separately, as for any layer.
  const double touching =
      3 * layer.touched / 2 * tokens * 4 / cluster.memory_bytes_per_second;
  const double products = fraction < 1
      ? std::clamp(
            (seconds - seconds_of_smaller) / (1 - fraction),
            0.1 * seconds,
            seconds)
      : seconds;
  cluster.expert_flops = 3 * layer.expert_flops * tokens / products;
  cluster.measured.seconds_per_routed_token =
      std::max(0.0, seconds - touching - products) / (3 * tokens);
}

// Number of tokens with which parts of a layer are timed.
std::int64_t tokens_of_parts(bool is_on_host) {
  return is_on_host ? 512 : 8192;
}

// Times experts, and smaller ones. `without_overhead(seconds, operators)`:
// returns the seconds on a whole processor without the operators' overhead.
template <class WithoutOverhead>
void measure_experts(
    Clocked& clocked,
    const LayerParts& parts,
    const TransformerShape& shape,
    std::int64_t length,
    const at::TensorOptions& options,
    WithoutOverhead&& without_overhead,
    ClusterSpeeds& cluster) {
  TransformerShape smaller = shape;
  smaller.expert_intermediate_size =
      std::max<std::int64_t>(1, shape.expert_intermediate_size / 4);
  const LayerParts smaller_parts(
      smaller, parts.tokens() / length, length, options.dtype(at::kFloat));
  const auto seconds_of = [&](const LayerParts& layer) {
    return without_overhead(
        clocked.seconds_of(layer.experts()),
        detail::kExpertOperators * static_cast<double>(shape.num_experts));
  };
  const double whole = seconds_of(parts);
  const double of_smaller = seconds_of(smaller_parts);
  read_experts(
      detail::model_costs(shape).expert_layer,
      static_cast<double>(parts.tokens()),
      whole,
      of_smaller,
      static_cast<double>(smaller.expert_intermediate_size) /
          static_cast<double>(shape.expert_intermediate_size),
      cluster);
}

// Derives the speeds of a whole processor from ranks that compute at once, each
// with a `share` of one.
void measure_parts(
    Clocked& clocked,
    const TransformerShape& shape,
    std::int64_t length,
    const at::TensorOptions& options,
    double share,
    ClusterSpeeds& cluster) {
  const bool is_on_host = options.device().is_cpu();
  const std::int64_t most_tokens = tokens_of_parts(is_on_host);
  const LayerParts parts(
      shape,
      std::max<std::int64_t>(1, most_tokens / length),
      length,
      options.dtype(at::kFloat));
  const LayerParts halves(
      shape, 1, std::min(length, most_tokens), options.dtype(at::kBFloat16));

  // The time of a tiny layer is its operators' overhead: once in forward, twice
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
    measure_experts(
        clocked, parts, shape, length, options, without_overhead, cluster);
  }
  const std::int64_t num_classes =
      std::min<std::int64_t>(shape.vocabulary, is_on_host ? 32768 : 131072);
  cluster.measured.loss_bytes_per_second = 3 * detail::kLogitTouches * tokens *
      static_cast<double>(num_classes) * 4 /
      without_overhead(clocked.seconds_of(parts.loss(num_classes)), 4);
  measure_adamw(clocked, parts.parameters(), share, cluster);
}

// Takes about `seconds`.
void measure_computing(
    const World& world,
    double seconds,
    const TransformerShape& given,
    std::int64_t sequence_length,
    std::int64_t most_tokens,
    double share,
    ClusterSpeeds& cluster) {
  const at::AutoGradMode with_gradients(true);
  const bool is_on_host = world.device().is_cpu();
  const TransformerShape shape = measured_shape(given, is_on_host);
  const std::int64_t length = std::clamp<std::int64_t>(
      sequence_length, 16, 2 * tokens_of_parts(is_on_host));
  Clocked clocked(world, 0.3 * seconds);
  measure_parts(
      clocked,
      shape,
      length,
      at::TensorOptions().device(world.device()),
      share,
      cluster);
  const detail::MeasuredLayers layers{shape, length, most_tokens};
  cluster.measured.layer_slowdowns = detail::measure_slowdowns(
      world, 0.6 * seconds + clocked.left(), layers, share, cluster);
  if (is_on_host) {
    cluster.measured.seconds_per_ring_block =
        detail::measure_ring_block(world, 0.1 * seconds, layers);
  }
}

}  // namespace

ClusterSpeeds measure_cluster(
    const World& world,
    const TransformerShape& shape,
    std::int64_t sequence_length,
    std::int64_t most_tokens,
    double seconds) {
  if (!(seconds >= 0)) {
    throw ConfigError(detail::format(
        "[train] measuring_seconds must be at least 0, but is {}; pass speeds "
        "(LayoutPlanOptions::cluster) to avoid a measurement",
        seconds));
  }
  const at::NoGradGuard no_grad;
  ClusterSpeeds cluster;
  cluster.ranks_per_node = std::max(1, world.local_size());
  double share = 1;
  if (world.device().is_cpu()) {
    cluster.measured.shared_processors =
        std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    share = static_cast<double>(cluster.measured.shared_processors) /
        cluster.ranks_per_node;
  }
  if (const auto bytes = least_memory(world)) cluster.memory_bytes = *bytes;
  const double for_messages = world.size() == 1 ? 0 : 0.15 * seconds;
  measure_computing(
      world,
      seconds - for_messages,
      shape,
      sequence_length,
      most_tokens,
      share,
      cluster);
  if (world.size() == 1) return cluster;
  ClockedMessages messages(world, cluster, for_messages);
  cluster.inside_node = cluster.between_nodes =
      detail::measure_link(world, world.group(), share, messages);
  if (world.device().is_cpu())
    cluster.measured.seconds_per_message =
        detail::measure_message(world, messages);
  const bool spans_nodes = world.size() > world.local_size();
  if (!spans_nodes || world.local_size() == 1) return cluster;
  // The ranks of a node are consecutive.
  std::vector<int> neighbours;
  for (int rank = 0; rank < world.local_size(); ++rank)
    neighbours.push_back(world.rank() - world.local_rank() + rank);
  cluster.inside_node =
      detail::measure_link(world, world.new_group(neighbours), share, messages);
  return cluster;
}

ClusterSpeeds measure_cluster(const World& world, double seconds) {
  return measure_cluster(
      world,
      {.num_layers = 1, .hidden_size = 512, .num_heads = 8, .vocabulary = 1},
      /*sequence_length=*/256,
      /*most_tokens=*/8192,
      seconds);
}

}  // namespace accelerate
