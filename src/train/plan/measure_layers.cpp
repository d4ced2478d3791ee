#include "train/plan/measure_layers.h"

#include <accelerate/attention.h>
#include <accelerate/sequence_shards.h>

#include <algorithm>
#include <bit>
#include <optional>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include "planning/layout/layer_seconds.h"
#include "train/plan/clocked.h"
#include "train/plan/layer_parts.h"

namespace accelerate::detail {

namespace {

// The shape of a rank's share when `tensor` ranks split each layer; nullopt if
// they cannot.
std::optional<TransformerShape> split(TransformerShape shape, int tensor) {
  for (std::int64_t* const size :
       {&shape.num_heads, &shape.num_kv_heads, &shape.intermediate_size}) {
    if (*size % tensor != 0) return std::nullopt;
    *size /= tensor;
  }
  if (shape.num_experts > 0) {
    if (shape.expert_intermediate_size % tensor != 0) return std::nullopt;
    shape.expert_intermediate_size /= tensor;
  }
  return shape;
}

// The group of `count` ranks of this machine that contains this rank.
Group neighbours(const World& world, int count) {
  std::vector<int> ranks;
  const int first = world.rank() - world.local_rank() % count;
  for (int rank = first; rank < first + count; ++rank) ranks.push_back(rank);
  return world.new_group(ranks);
}

/// Times layers that `tensor` ranks split.
class SlowdownsOfDegree {
 public:
  SlowdownsOfDegree(
      const World& world,
      double seconds,
      int tensor,
      const MeasuredLayers& layers,
      double share,
      const ClusterSpeeds& cluster)
      : clocked_(world, seconds),
        tensor_(tensor),
        layers_(layers),
        options_(at::TensorOptions().device(world.device()).dtype(at::kFloat)),
        share_(share),
        model_(model_costs(layers.shape)) {
    plan_.cluster = cluster;
    plan_.sequence_length = layers.length;
    plan_.precision = FloatType::fp32;
    if (tensor > 1 && world.device().is_cpu() &&
        world.local_size() % tensor == 0)
      sums_ = neighbours(world, tensor);
  }

  // Stops before a size whose calls would exceed the time left.
  std::vector<LayerSlowdown> measure() {
    std::vector<LayerSlowdown> found;
    const auto own = split(layers_.shape, tensor_);
    // Fewer sizes for split layers, since there are several degrees.
    const std::int64_t next = tensor_ > 1 ? 4 : 2;
    const double least_calls = sums_ ? 6 : 2;
    for (std::int64_t samples = 1; own &&
         (samples == 1 || samples * layers_.length <= layers_.most_tokens);
         samples *= next) {
      const double left = clocked_.left();
      found.push_back(with_samples(*own, samples));
      const double expected =
          least_calls * static_cast<double>(next) * seconds_of_stack_;
      if (expected > std::min(left, clocked_.left())) break;
    }
    return found;
  }

  [[nodiscard]] double left() const { return clocked_.left(); }

 private:
  LayerSlowdown with_samples(
      const TransformerShape& own,
      std::int64_t samples) {
    constexpr int kLayers = 4;
    const auto count = static_cast<int>(
        std::min<std::int64_t>(layers_.shape.num_layers, kLayers));
    TrainingLayout layout;
    layout.micro_batch = samples;
    layout.tensor = tensor_;
    const LayerParts parts(own, samples, layers_.length, options_);
    const double seconds = clocked_.seconds_of(parts.stack(count));
    const double expected = 3 * count *
        forward_seconds({model_, layout, plan_}, model_.expert_layer);
    LayerSlowdown found{
        .tokens = static_cast<double>(samples * layers_.length),
        .factor = seconds * share_ / expected,
        .tensor = tensor_};
    seconds_of_stack_ = seconds;
    if (!sums_) return found;
    const double with_sums = clocked_.seconds_of(parts.stack(count, sums_));
    // Processors may have become faster or slower meanwhile.
    const double again = clocked_.seconds_of(parts.stack(count));
    found.reduce_seconds = std::max(0.0, with_sums - (seconds + again) / 2) /
        (LayerParts::kSums * count);
    seconds_of_stack_ = with_sums;
    return found;
  }

  Clocked clocked_;
  int tensor_;
  MeasuredLayers layers_;
  at::TensorOptions options_;
  double share_;
  ModelCosts model_;
  LayoutPlanOptions plan_;
  /// The ranks that split a layer, if their all-reduces are timed.
  std::optional<Group> sums_;
  /// Time of the last stack, the largest so far.
  double seconds_of_stack_ = 0;
};

}  // namespace

std::vector<LayerSlowdown> measure_slowdowns(
    const World& world,
    double seconds,
    const MeasuredLayers& layers,
    double share,
    const ClusterSpeeds& cluster) {
  std::vector<LayerSlowdown> all;
  int degrees_left = std::bit_width(static_cast<unsigned>(world.local_size()));
  for (int tensor = 1; tensor <= world.local_size(); tensor *= 2) {
    const double own = seconds / degrees_left--;
    SlowdownsOfDegree degree(world, own, tensor, layers, share, cluster);
    const auto found = degree.measure();
    all.insert(all.end(), found.begin(), found.end());
    seconds -= own - degree.left();
  }
  return all;
}

double measure_ring_block(
    const World& world,
    double seconds,
    const MeasuredLayers& layers) {
  constexpr std::int64_t kTokens = 1024;
  const int most = std::min(world.local_size(), world.size());
  int ranks = 1;
  while (2 * ranks <= most && most % (2 * ranks) == 0) ranks *= 2;
  if (ranks == 1) return 0;
  const std::int64_t tokens = std::min(kTokens, layers.most_tokens);
  // A block has two halves, from both ends of the sequence.
  const std::int64_t positions =
      std::max<std::int64_t>(2, std::min(layers.length, tokens) / ranks);
  const std::int64_t samples =
      std::max<std::int64_t>(1, tokens / (positions * ranks));
  Clocked clocked(world, seconds);
  const TransformerShape& shape = layers.shape;
  const auto step =
      [&](std::int64_t own, std::int64_t count, const Group& group) {
        const at::Tensor x =
            at::randn({count, shape.num_heads, own, shape.head_size})
                .requires_grad_();
        const SequenceShards shards(own * group.size(), group.size());
        return [=] {
          const at::Tensor y =
              ring_attention(x, x, x, group, shards, {.is_causal = true});
          torch::autograd::grad({y}, {x}, {at::ones_like(y)});
        };
      };
  const double divided =
      clocked.seconds_of(step(positions, samples, neighbours(world, ranks)));
  // This rank's share of the same operations, undivided.
  const double whole = clocked.seconds_of(
      step(ranks * positions, samples, world.new_group({world.rank()})));
  return std::max(0.0, divided - whole / ranks) / (3 * ranks);
}

}  // namespace accelerate::detail
