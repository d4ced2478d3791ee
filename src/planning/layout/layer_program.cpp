#include "planning/layout/layer_program.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "planning/layout/plan_inputs.h"
#include "planning/training_memory.h"

namespace accelerate::detail {

namespace {

double product_seconds(const LayoutCase& of, double flops) {
  return flops / product_speed(of.options);
}

double expert_seconds(const LayoutCase& of, double flops) {
  const double speed = of.cluster().expert_flops;
  return speed > 0 ? flops / speed : product_seconds(of, flops);
}

// Elementwise work on so many elements.
double touch_seconds(const LayoutCase& of, double elements) {
  return elements * of.element_bytes() / of.cluster().memory_bytes_per_second;
}

// The same on logits.
double loss_seconds(const LayoutCase& of, double elements) {
  const double speed = of.cluster().loss_bytes_per_second;
  if (speed == 0) return touch_seconds(of, elements);
  return elements * of.element_bytes() / speed;
}

double overhead_seconds(const LayoutCase& of, double operators) {
  return operators * of.cluster().seconds_per_operator;
}

/// The parts of a layer's forward.
struct LayerSeconds {
  double projections = 0;
  double attention = 0;
  double mlp = 0;
  double experts = 0;
};

LayerSeconds seconds_of(const LayoutCase& of, const LayerCosts& layer) {
  const double tokens = of.tokens(), tensor = of.layout.tensor;
  const double positions = static_cast<double>(of.options.sequence_length);
  const double touched = layer.touched *
      (1 - layer.kept_divided + layer.kept_divided / tensor) * tokens;
  LayerSeconds seconds;
  seconds.projections =
      product_seconds(of, layer.attention_flops * tokens / tensor) +
      touch_seconds(of, touched / 2) +
      overhead_seconds(of, kLayerOperators / 2);
  const double attention =
      layer.attention_flops_per_position * positions * tokens / tensor;
  seconds.attention = of.cluster().attention_flops > 0
      ? attention / of.cluster().attention_flops
      : product_seconds(of, attention);
  seconds.mlp = product_seconds(of, layer.mlp_flops * tokens / tensor) +
      touch_seconds(of, touched / 2) +
      overhead_seconds(of, kLayerOperators / 2);
  if (layer.has_experts) {
    const double held =
        static_cast<double>(of.model.shape.num_experts) / of.layout.expert;
    seconds.experts = expert_seconds(
                          of,
                          layer.expert_flops * tokens / tensor *
                              of.options.expert_imbalance) +
        overhead_seconds(of, kExpertOperators * held);
  }
  return seconds;
}

// The parameters of one layer in bytes, as they are gathered.
double gathered_bytes(const LayoutCase& of, double parameters, double divisor) {
  return parameters / divisor * of.element_bytes();
}

// Gradients are reduced in the dtype of the parameters.
double gradient_bytes(const LayoutCase& of, double parameters, double divisor) {
  return gathered_bytes(of, parameters, divisor);
}

double expert_divisor(const LayoutCase& of) {
  return static_cast<double>(of.layout.tensor) * of.layout.expert;
}

/// Writes the program of one rank.
class Writer {
 public:
  Writer(
      RankPrograms& programs,
      const RankResources& rank,
      const LayoutCase& of)
      : programs_(programs), rank_(rank), of_(of) {}

  void compute(double seconds, const char* what) {
    if (seconds > 0) programs_.compute(0, rank_.processor, seconds, what);
  }
  std::optional<std::size_t> begin(SimulatedMessage message) {
    if (message.latency <= 0 && message.flows.empty()) return std::nullopt;
    const std::size_t id = programs_.add_message(std::move(message));
    programs_.begin(0, id);
    return id;
  }
  void wait(const std::optional<std::size_t>& message) {
    if (message) programs_.wait(0, *message);
  }

  void all_reduce_activations(double elements) {
    wait(begin(collective_of(
        CollectivePattern::all_reduce,
        of_.tensor_group(),
        elements * of_.element_bytes(),
        traffic::kTensor)));
  }

  SimulatedMessage collective_of(
      CollectivePattern kind,
      const RankGroup& group,
      double bytes,
      const char* what) const {
    return collective(of_.cluster(), rank_, kind, group, bytes, what);
  }

  // Begins gathering a layer's parameters.
  std::vector<std::optional<std::size_t>> begin_gather(
      const LayerCosts& layer) {
    if (of_.layout.sharding != LayoutSharding::parameters) return {};
    return {
        begin(collective_of(
            CollectivePattern::all_gather,
            of_.shard_group(),
            gathered_bytes(of_, layer.dense_parameters, of_.layout.tensor),
            traffic::kParameters)),
        begin(collective_of(
            CollectivePattern::all_gather,
            of_.expert_shard_group(),
            gathered_bytes(of_, layer.expert_parameters, expert_divisor(of_)),
            traffic::kParameters))};
  }
  void wait_all(const std::vector<std::optional<std::size_t>>& messages) {
    for (const auto& message : messages) wait(message);
  }

  // Attention whose keys and values go around a ring, each block while the one
  // before is computed with. `rounds`: how many tensors travel per element.
  void attention(const LayerCosts& layer, double seconds, double rounds) {
    const int ranks = of_.layout.context;
    if (ranks == 1) return compute(seconds, "attention");
    const double bytes = rounds * of_.tokens() * layer.keys_and_values /
        of_.layout.tensor * of_.element_bytes();
    std::optional<std::size_t> next;
    for (int step = 0; step < ranks; ++step) {
      wait(next);
      next = std::nullopt;
      if (step + 1 < ranks) {
        next = begin(transfer(
            of_.cluster(), rank_, of_.layout.tensor, bytes, traffic::kContext));
      }
      compute(seconds / ranks, "attention");
    }
  }

  // What tokens are sent to, beside what all use, `factor` times per forward.
  void
  experts(const LayerCosts& layer, const LayerSeconds& seconds, double factor) {
    const double bytes = of_.tokens() *
        static_cast<double>(of_.model.shape.top_k) * layer.hidden *
        of_.element_bytes();
    const auto exchange = [&] {
      return begin(collective_of(
          CollectivePattern::all_to_all,
          of_.expert_group(),
          bytes,
          traffic::kExperts));
    };
    const auto there = exchange();
    compute(factor * seconds.mlp, "mlp");
    wait(there);
    compute(factor * seconds.experts, "experts");
    wait(exchange());
  }

  void
  mlp(const LayerCosts& layer, const LayerSeconds& seconds, double factor) {
    if (layer.has_experts) return experts(layer, seconds, factor);
    compute(factor * seconds.mlp, "mlp");
  }

  // Begins what averages a layer's gradients.
  std::vector<std::optional<std::size_t>> begin_reduce(
      double dense,
      double expert) {
    std::vector<std::optional<std::size_t>> messages;
    const auto add =
        [&](double bytes, const RankGroup& shards, const RankGroup& replicas) {
          if (bytes <= 0) return;
          if (of_.layout.sharding != LayoutSharding::none) {
            messages.push_back(begin(collective_of(
                CollectivePattern::reduce_scatter,
                shards,
                bytes,
                traffic::kGradients)));
            bytes /= shards.size;
          }
          messages.push_back(begin(collective_of(
              CollectivePattern::all_reduce,
              replicas,
              bytes,
              traffic::kGradients)));
        };
    add(gradient_bytes(of_, dense, of_.layout.tensor),
        of_.shard_group(),
        of_.replica_group());
    add(gradient_bytes(of_, expert, expert_divisor(of_)),
        of_.expert_shard_group(),
        of_.expert_replica_group());
    return messages;
  }

 private:
  RankPrograms& programs_;
  RankResources rank_;
  const LayoutCase& of_;
};

double elements_between_layers(const LayoutCase& of) {
  return of.tokens() * static_cast<double>(of.model.shape.hidden_size);
}

}  // namespace

double forward_seconds(const LayoutCase& of, const LayerCosts& layer) {
  const LayerSeconds seconds = seconds_of(of, layer);
  return seconds.projections + seconds.attention + seconds.mlp +
      seconds.experts;
}

double head_seconds(const LayoutCase& of) {
  const double vocabulary =
      static_cast<double>(of.model.shape.vocabulary) / of.layout.tensor;
  return product_seconds(
             of, of.model.head_flops * of.tokens() / of.layout.tensor) +
      loss_seconds(of, kLogitTouches * of.tokens() * vocabulary) +
      overhead_seconds(of, 4);
}

RankParameters rank_parameters(const LayoutCase& of, const LayerRange& layers) {
  RankParameters parameters;
  for (std::int64_t i = layers.begin; i < layers.end; ++i) {
    const LayerCosts& layer = of.model.layer(i);
    parameters.dense += layer.dense_parameters / of.layout.tensor;
    parameters.experts += layer.expert_parameters / expert_divisor(of);
  }
  if (layers.has_embedding)
    parameters.dense += of.model.embedding_parameters / of.layout.tensor;
  if (layers.has_head) {
    const bool has_own = of.model.head_parameters > 0 || !layers.has_embedding;
    if (has_own)
      parameters.dense += of.model.embedding_parameters / of.layout.tensor;
  }
  return parameters;
}

double stepped_parameters(const LayoutCase& of, const LayerRange& layers) {
  const RankParameters parameters = rank_parameters(of, layers);
  if (of.layout.sharding == LayoutSharding::none)
    return parameters.dense + parameters.experts;
  return parameters.dense / of.layout.shard +
      parameters.experts / of.expert_shard();
}

double optimizer_bytes(const std::string& optimizer) {
  const auto state = static_cast<double>(optimizer_state_bytes(optimizer));
  return 2 * state + 2 * 4 + 4 * 4;
}

double optimizer_seconds(const LayoutCase& of, const LayerRange& layers) {
  const ClusterSpeeds& cluster = of.cluster();
  return stepped_parameters(of, layers) *
      optimizer_bytes(of.options.optimizer) /
      (cluster.optimizer_bytes_per_second > 0
           ? cluster.optimizer_bytes_per_second
           : cluster.memory_bytes_per_second);
}

void add_forward(
    RankPrograms& programs,
    const RankResources& rank,
    const LayoutCase& of,
    const LayerRange& layers) {
  Writer writer(programs, rank, of);
  std::vector<std::optional<std::size_t>> gather;
  if (layers.begin < layers.end)
    gather = writer.begin_gather(of.model.layer(layers.begin));
  if (layers.has_embedding)
    writer.compute(
        touch_seconds(of, 2 * elements_between_layers(of)), "embedding");
  for (std::int64_t i = layers.begin; i < layers.end; ++i) {
    const LayerCosts& layer = of.model.layer(i);
    writer.wait_all(gather);
    gather.clear();
    if (i + 1 < layers.end) gather = writer.begin_gather(of.model.layer(i + 1));
    const LayerSeconds seconds = seconds_of(of, layer);
    writer.compute(seconds.projections, "projections");
    writer.attention(layer, seconds.attention, 1);
    writer.all_reduce_activations(elements_between_layers(of));
    writer.mlp(layer, seconds, 1);
    writer.all_reduce_activations(elements_between_layers(of));
  }
  if (layers.has_head) writer.compute(head_seconds(of), "head");
}

void add_backward(
    RankPrograms& programs,
    const RankResources& rank,
    const LayoutCase& of,
    const LayerRange& layers,
    bool reduces) {
  Writer writer(programs, rank, of);
  std::vector<std::optional<std::size_t>> gather, reduction, all_reductions;
  if (layers.begin < layers.end)
    gather = writer.begin_gather(of.model.layer(layers.end - 1));
  const auto reduce = [&](double dense, double experts) {
    if (!reduces) return;
    // At most two layers' gradients are on their way where they are sharded.
    if (of.layout.sharding == LayoutSharding::gradients ||
        of.layout.sharding == LayoutSharding::parameters)
      writer.wait_all(reduction);
    reduction = writer.begin_reduce(dense, experts);
    all_reductions.insert(
        all_reductions.end(), reduction.begin(), reduction.end());
  };
  if (layers.has_head) {
    writer.compute(2 * head_seconds(of), "head");
    if (of.model.head_parameters > 0 || !layers.has_embedding)
      reduce(of.model.embedding_parameters, 0);
  }
  const double again = of.layout.recomputes ? 1 : 0;
  for (std::int64_t i = layers.end; i-- > layers.begin;) {
    const LayerCosts& layer = of.model.layer(i);
    writer.wait_all(gather);
    gather.clear();
    if (i > layers.begin) gather = writer.begin_gather(of.model.layer(i - 1));
    const LayerSeconds seconds = seconds_of(of, layer);
    writer.compute(again * forward_seconds(of, layer), "recomputing");
    writer.mlp(layer, seconds, 2);
    writer.all_reduce_activations(elements_between_layers(of));
    writer.attention(layer, 2 * seconds.attention, 2);
    writer.compute(2 * seconds.projections, "projections");
    writer.all_reduce_activations(elements_between_layers(of));
    reduce(layer.dense_parameters, layer.expert_parameters);
  }
  if (layers.has_embedding) {
    writer.compute(
        touch_seconds(of, 2 * elements_between_layers(of)), "embedding");
    reduce(of.model.embedding_parameters, 0);
  }
  writer.wait_all(all_reductions);
}

void add_step_end(
    RankPrograms& programs,
    const RankResources& rank,
    const LayoutCase& of,
    const LayerRange& layers) {
  Writer writer(programs, rank, of);
  writer.compute(optimizer_seconds(of, layers), "optimizer");
  const bool gathers = of.layout.sharding == LayoutSharding::optimizer ||
      of.layout.sharding == LayoutSharding::gradients;
  if (!gathers) return;
  const RankParameters parameters = rank_parameters(of, layers);
  writer.wait(writer.begin(writer.collective_of(
      CollectivePattern::all_gather,
      of.shard_group(),
      parameters.dense * of.element_bytes(),
      traffic::kParameters)));
  writer.wait(writer.begin(writer.collective_of(
      CollectivePattern::all_gather,
      of.expert_shard_group(),
      parameters.experts * of.element_bytes(),
      traffic::kParameters)));
}

}  // namespace accelerate::detail
