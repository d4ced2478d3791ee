#include "planning/layout/layer_program.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "planning/layout/layer_seconds.h"

namespace accelerate::detail {

namespace {

// Bytes of one layer's parameters when they are gathered.
double gathered_bytes(const LayoutCase& of, double parameters, double divisor) {
  return parameters / divisor * of.element_bytes();
}

// Gradients are reduced in the dtype of the parameters.
double gradient_bytes(const LayoutCase& of, double parameters, double divisor) {
  return gathered_bytes(of, parameters, divisor);
}

constexpr double kBucketBytes = 25 << 20;

// Number of messages for a layer's sharded parameters or their gradients: one
// per matrix, and one for all small tensors.
double num_messages(const LayoutCase& of, const LayerCosts& layer) {
  constexpr double kSmallBytes = 32 << 10;
  const double bytes = layer.dense_parameters / layer.matrices *
      of.element_bytes() / of.layout.tensor;
  return bytes < kSmallBytes ? 1 : layer.matrices + 1;
}

double elements_between_layers(const LayoutCase& of) {
  return of.tokens() * static_cast<double>(of.model.shape.hidden_size);
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

  // The measured all-reduce is that of a layer's output; larger ones also cost
  // the link time for the additional bytes.
  void all_reduce_activations(double elements) {
    const auto of_bytes = [&](double bytes, double count) {
      return collective_of(
          CollectivePattern::all_reduce,
          of_.tensor_group(),
          bytes,
          traffic::kTensor,
          {count});
    };
    const std::optional<double> measured = reduction_seconds(of_);
    if (!measured)
      return wait(begin(of_bytes(elements * of_.element_bytes(), 1)));
    const double more = std::max(0.0, elements - elements_between_layers(of_));
    SimulatedMessage message = of_bytes(more * of_.element_bytes(), 0);
    message.flows.push_back({*measured * rank_.share, {rank_.processor}});
    wait(begin(std::move(message)));
  }

  SimulatedMessage collective_of(
      CollectivePattern kind,
      const RankGroup& group,
      double bytes,
      const char* what,
      const CollectiveMessages& messages = {}) const {
    return collective(of_.cluster(), rank_, kind, group, bytes, what, messages);
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
            traffic::kParameters,
            {num_messages(of_, layer), true})),
        begin(collective_of(
            CollectivePattern::all_gather,
            of_.expert_shard_group(),
            gathered_bytes(of_, layer.expert_parameters, of_.expert_divisor()),
            traffic::kParameters))};
  }
  void wait_all(const std::vector<std::optional<std::size_t>>& messages) {
    for (const auto& message : messages) wait(message);
  }

  // Ring attention: each block of keys and values is sent while the previous
  // one is used. `rounds`: how many tensors are sent per element.
  void attention(const LayerCosts& layer, double seconds, double rounds) {
    const int ranks = of_.layout.context;
    if (ranks == 1) return compute(seconds, "attention");
    const double bytes = rounds * of_.tokens() * layer.keys_and_values /
        of_.layout.tensor * of_.element_bytes();
    std::optional<double> latency;
    if (of_.cluster().measured.shared_processors > 0 &&
        of_.cluster().measured.seconds_per_ring_block > 0) {
      // The rank's own block needs no message, but costs operators as well.
      latency = rounds * of_.cluster().measured.seconds_per_ring_block * ranks /
          (ranks - 1);
    }
    std::optional<std::size_t> next;
    for (int step = 0; step < ranks; ++step) {
      wait(next);
      next = std::nullopt;
      if (step + 1 < ranks) {
        next = begin(transfer(
            of_.cluster(),
            rank_,
            of_.layout.tensor,
            bytes,
            traffic::kContext,
            latency));
      }
      compute(seconds / ranks, "attention");
    }
  }

  // Routed experts, beside the shared expert, at `factor` times the cost of a
  // forward. Ranks first exchange how many tokens they send, then send them
  // between pairs of ranks.
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
          traffic::kExperts,
          {1, true}));
    };
    if (factor == 1) {
      wait(begin(collective_of(
          CollectivePattern::all_gather,
          of_.expert_group(),
          static_cast<double>(of_.model.shape.num_experts) *
              sizeof(std::int64_t) * of_.layout.expert,
          traffic::kExperts)));
    }
    const auto there = exchange();
    compute(factor * seconds.mlp, "mlp");
    wait(there);
    compute(factor * seconds.experts, "experts");
    // Ranks along `tensor` sum one row for each expert of a token.
    all_reduce_activations(
        of_.tokens() * static_cast<double>(of_.model.shape.top_k) *
        layer.hidden * of_.options.expert_imbalance);
    wait(exchange());
    const bool has_shared = layer.mlp_flops > 0;
    if (has_shared) all_reduce_activations(of_.tokens() * layer.hidden);
  }

  void
  mlp(const LayerCosts& layer, const LayerSeconds& seconds, double factor) {
    if (layer.has_experts) return experts(layer, seconds, factor);
    compute(factor * seconds.mlp, "mlp");
    all_reduce_activations(of_.tokens() * layer.hidden);
  }

  // Begins the reduction of a layer's gradients.
  std::vector<std::optional<std::size_t>>
  begin_reduce(double dense, double expert, double num_dense_messages) {
    std::vector<std::optional<std::size_t>> messages;
    const auto add = [&](double bytes,
                         const RankGroup& shards,
                         const RankGroup& replicas,
                         double count) {
      if (bytes <= 0) return;
      if (of_.layout.sharding != LayoutSharding::none) {
        messages.push_back(begin(collective_of(
            CollectivePattern::reduce_scatter,
            shards,
            bytes,
            traffic::kGradients,
            {count, true})));
        bytes /= shards.size;
      } else {
        // Several layers share a bucket (bucket_cap_mb).
        count = std::min(1.0, bytes / kBucketBytes);
      }
      messages.push_back(begin(collective_of(
          CollectivePattern::all_reduce,
          replicas,
          bytes,
          traffic::kGradients,
          {count})));
    };
    add(gradient_bytes(of_, dense, of_.layout.tensor),
        of_.shard_group(),
        of_.replica_group(),
        num_dense_messages);
    add(gradient_bytes(of_, expert, of_.expert_divisor()),
        of_.expert_shard_group(),
        of_.expert_replica_group(),
        1);
    return messages;
  }

 private:
  RankPrograms& programs_;
  RankResources rank_;
  const LayoutCase& of_;
};

// Mean seconds per micro-batch of accumulating gradients; the first one adds
// nothing. Gradients that are reduced every micro-batch are added as shards.
double
accumulation_seconds(const LayoutCase& of, double dense, double experts) {
  const auto count = static_cast<double>(of.layout.num_micro_batches);
  double elements =
      dense / of.layout.tensor / (of.reduces_always() ? of.layout.shard : 1);
  elements += experts / of.expert_divisor() /
      (of.reduces_always() ? of.expert_shard() : 1);
  return touch_seconds(of, 3 * elements) * (count - 1) / count;
}

}  // namespace

void add_forward(
    RankPrograms& programs,
    const RankResources& rank,
    const LayoutCase& of,
    const LayerRange& layers) {
  Writer writer(programs, rank, of);
  std::vector<std::optional<std::size_t>> gather;
  if (layers.begin < layers.end)
    gather = writer.begin_gather(of.model.layer(layers.begin));
  if (layers.has_embedding) {
    writer.compute(
        touch_seconds(of, 2 * elements_between_layers(of)), "embedding");
    // Each rank along `tensor` has a part of the vocabulary.
    writer.all_reduce_activations(elements_between_layers(of));
  }
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
  const auto reduce = [&](double dense, double experts, double count) {
    if (!reduces) return;
    // Sharded gradients of at most two layers are in flight.
    if (of.reduces_always()) writer.wait_all(reduction);
    reduction = writer.begin_reduce(dense, experts, count);
    all_reductions.insert(
        all_reductions.end(), reduction.begin(), reduction.end());
  };
  if (layers.has_head) {
    writer.compute(2 * head_seconds(of), "head");
    writer.all_reduce_activations(elements_between_layers(of));
    if (of.model.head_parameters > 0 || !layers.has_embedding) {
      writer.compute(
          accumulation_seconds(of, of.model.embedding_parameters, 0),
          "gradients");
      reduce(of.model.embedding_parameters, 0, 1);
    }
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
    writer.attention(layer, 2 * seconds.attention, 2);
    writer.compute(2 * seconds.projections, "projections");
    writer.all_reduce_activations(elements_between_layers(of));
    writer.compute(
        accumulation_seconds(
            of, layer.dense_parameters, layer.expert_parameters),
        "gradients");
    reduce(
        layer.dense_parameters,
        layer.expert_parameters,
        num_messages(of, layer));
  }
  if (layers.has_embedding) {
    // The gradient of an embedding is dense.
    writer.compute(
        touch_seconds(
            of,
            2 * elements_between_layers(of) +
                of.model.embedding_parameters / of.layout.tensor) +
            accumulation_seconds(of, of.model.embedding_parameters, 0),
        "embedding");
    reduce(of.model.embedding_parameters, 0, 1);
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
  double messages = (layers.has_embedding ? 1 : 0) + (layers.has_head ? 1 : 0);
  for (std::int64_t i = layers.begin; i < layers.end; ++i)
    messages += num_messages(of, of.model.layer(i));
  writer.wait(writer.begin(writer.collective_of(
      CollectivePattern::all_gather,
      of.shard_group(),
      parameters.dense * of.element_bytes(),
      traffic::kParameters,
      {messages, true})));
  writer.wait(writer.begin(writer.collective_of(
      CollectivePattern::all_gather,
      of.expert_shard_group(),
      parameters.experts * of.element_bytes(),
      traffic::kParameters)));
}

}  // namespace accelerate::detail
