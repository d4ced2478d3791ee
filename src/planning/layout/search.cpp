#include "planning/layout/search.h"

#include <algorithm>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "planning/layout/model_costs.h"

namespace accelerate::detail {

namespace {

std::vector<int> divisors(int number) {
  std::vector<int> found;
  for (int i = 1; i <= number / i; ++i) {
    if (number % i != 0) continue;
    found.push_back(i);
    if (i != number / i) found.push_back(number / i);
  }
  std::ranges::sort(found);
  return found;
}

bool is_power_of_two(std::int64_t number) {
  return number > 0 && (number & (number - 1)) == 0;
}

bool divides_heads(const TransformerShape& shape, int tensor) {
  return shape.num_heads % tensor == 0 && shape.num_kv_heads % tensor == 0;
}

// Each rank has two shards, so that causal attention is balanced.
bool divides_sequence(const LayoutPlanOptions& options, int context) {
  return context == 1 ||
      options.sequence_length % (2 * std::int64_t{context}) == 0;
}

// Files keep what is gathered: shards of parameters, or all of one rank.
bool may_have_files(const TrainingLayout& layout) {
  return layout.sharding == LayoutSharding::parameters ||
      layout.replicate * layout.shard == 1;
}

class Search {
 public:
  Search(const ModelCosts& model, const LayoutPlanOptions& options)
      : model_(model), options_(options) {}

  std::vector<TrainingLayout> run() {
    for (const int tensor : choices(options_.num_ranks, options_.tensor)) {
      if (!divides_heads(model_.shape, tensor)) continue;
      if (!options_.tensor && !is_worth_trying_tensor(tensor)) continue;
      const int after_tensor = options_.num_ranks / tensor;
      for (const int context : choices(after_tensor, options_.context)) {
        if (!divides_sequence(options_, context)) continue;
        if (!options_.context && !is_worth_trying_context(context)) continue;
        const int after_context = after_tensor / context;
        for (const int pipeline : choices(after_context, options_.pipeline)) {
          if (pipeline > model_.shape.num_layers) continue;
          add_data(
              {.context = context, .tensor = tensor, .pipeline = pipeline},
              after_context / pipeline);
        }
      }
    }
    return std::move(found_);
  }

 private:
  // Degrees that divide `ranks`.
  static std::vector<int> choices(int ranks, std::optional<int> given) {
    if (!given) return divisors(ranks);
    return ranks % *given == 0 ? std::vector<int>{*given} : std::vector<int>{};
  }

  [[nodiscard]] bool is_worth_trying_tensor(int degree) const {
    return degree <= 4 * options_.cluster->ranks_per_node;
  }
  // Whether a choice agrees with the one that is fixed, if any.
  static bool may_be(bool choice, std::optional<bool> fixed) {
    return !fixed || choice == *fixed;
  }
  [[nodiscard]] bool has_files(const TrainingLayout& layout) const {
    // Sharded models refuse LOMO.
    return options_.cluster->disk_bytes_per_second > 0 &&
        options_.optimizer != "lomo" && may_have_files(layout);
  }

  [[nodiscard]] bool is_worth_trying_context(int degree) const {
    return degree == 1 || options_.sequence_length / degree >= 64;
  }

  void add_data(const TrainingLayout& so_far, int data_ranks) {
    for (const int shard : choices(data_ranks, options_.shard)) {
      const int replicate = data_ranks / shard;
      if (options_.replicate && replicate != *options_.replicate) continue;
      for (const LayoutSharding sharding :
           {LayoutSharding::none,
            LayoutSharding::optimizer,
            LayoutSharding::gradients,
            LayoutSharding::parameters}) {
        if ((sharding == LayoutSharding::none) != (shard == 1)) continue;
        if (options_.sharding && sharding != *options_.sharding) continue;
        TrainingLayout layout = so_far;
        layout.replicate = replicate;
        layout.shard = shard;
        layout.sharding = sharding;
        for (const bool on_disk : {false, true}) {
          layout.on_disk = on_disk;
          if (may_be(layout.on_disk, options_.on_disk) &&
              (!on_disk || has_files(layout)))
            add_experts(layout);
        }
      }
    }
  }

  void add_experts(TrainingLayout layout) {
    const int data_ranks = layout.replicate * layout.shard;
    for (const int expert : choices(data_ranks, options_.expert)) {
      if (expert > 1 && expert > model_.shape.num_experts) continue;
      if (layout.shard % expert != 0 && expert % layout.shard != 0) continue;
      layout.expert = expert;
      add_batches(layout);
    }
  }

  void add_batches(TrainingLayout layout) {
    const std::int64_t samples = samples_of_step(options_);
    const std::int64_t data_ranks = layout.replicate * layout.shard;
    // Ranks without a sample would have nothing to do.
    if (samples % data_ranks != 0) return;
    const std::int64_t own = samples / data_ranks;
    for (std::int64_t micro = 1; micro <= own; ++micro) {
      if (own % micro != 0 || !(is_power_of_two(micro) || micro == own))
        continue;
      layout.micro_batch = micro;
      layout.num_micro_batches = own / micro;
      for (const bool recomputes : {false, true}) {
        if (!may_be(recomputes, options_.recomputes)) continue;
        layout.recomputes = recomputes;
        add_schedules(layout);
      }
    }
  }

  void add_schedules(TrainingLayout layout) {
    layout.schedule = PipelineScheduleKind::one_f_one_b;
    layout.num_chunks = 1;
    found_.push_back(layout);
    if (layout.pipeline == 1 || layout.num_micro_batches == 1) return;
    layout.schedule = PipelineScheduleKind::zero_bubble;
    // With recomputation, both halves of a backward would have to recompute.
    if (!layout.recomputes) found_.push_back(layout);
    layout.schedule = PipelineScheduleKind::interleaved_1f1b;
    for (const int chunks : {2, 4}) {
      if (model_.shape.num_layers < std::int64_t{layout.pipeline} * chunks)
        continue;
      if (layout.num_micro_batches % layout.pipeline != 0) continue;
      layout.num_chunks = chunks;
      found_.push_back(layout);
    }
  }

  const ModelCosts& model_;
  const LayoutPlanOptions& options_;
  std::vector<TrainingLayout> found_;
};

// States which size of the model or the batch the layout does not divide.
std::string size_complaint(
    const TransformerShape& shape,
    const TrainingLayout& layout,
    const LayoutPlanOptions& options) {
  if (!divides_heads(shape, layout.tensor)) {
    return format(
        "tensor is {}, which does not divide {} heads, "
        "and {} of keys and values",
        layout.tensor,
        shape.num_heads,
        shape.num_kv_heads);
  }
  if (!divides_sequence(options, layout.context)) {
    return format(
        "context is {}, twice which does not divide a sequence of {} tokens",
        layout.context,
        options.sequence_length);
  }
  if (layout.expert > 1 && layout.expert > shape.num_experts) {
    return format(
        "expert is {}, but the model has {} experts",
        layout.expert,
        shape.num_experts);
  }
  const std::int64_t samples = std::int64_t{layout.replicate} * layout.shard *
      layout.micro_batch * layout.num_micro_batches;
  if (samples != samples_of_step(options)) {
    return format(
        "replicate {} x shard {} x micro-batch {} x {} are {} samples, but a "
        "step has {}",
        layout.replicate,
        layout.shard,
        layout.micro_batch,
        layout.num_micro_batches,
        samples,
        samples_of_step(options));
  }
  return {};
}

}  // namespace

std::vector<TrainingLayout> all_layouts(
    const ModelCosts& model,
    const LayoutPlanOptions& options) {
  return Search(model, options).run();
}

std::string layout_complaint(
    const ModelCosts& model,
    const TrainingLayout& layout,
    const LayoutPlanOptions& options) {
  const bool is_positive = layout.replicate > 0 && layout.shard > 0 &&
      layout.expert > 0 && layout.context > 0 && layout.tensor > 0 &&
      layout.pipeline > 0 && layout.micro_batch > 0 &&
      layout.num_micro_batches > 0 && layout.num_chunks > 0;
  if (!is_positive) return "each number of a layout must be at least 1";
  if (layout.num_ranks() != options.num_ranks) {
    return format(
        "the layout has {} ranks, but there are {}",
        layout.num_ranks(),
        options.num_ranks);
  }
  if (std::int64_t{layout.pipeline} * layout.num_chunks >
      model.shape.num_layers) {
    return format(
        "{} stages cannot be made of {} layers",
        layout.pipeline * layout.num_chunks,
        model.shape.num_layers);
  }
  if ((layout.replicate * layout.shard) % layout.expert != 0 ||
      (layout.shard % layout.expert != 0 &&
       layout.expert % layout.shard != 0)) {
    return format(
        "expert is {}, which does not divide replicate {} x "
        "shard {} in whole shards",
        layout.expert,
        layout.replicate,
        layout.shard);
  }
  if ((layout.sharding == LayoutSharding::none) != (layout.shard == 1)) {
    return format(
        "shard is {}, but {}",
        layout.shard,
        layout.shard == 1 ? "something is sharded" : "nothing is sharded");
  }
  if (layout.on_disk && !may_have_files(layout)) {
    return "parameters must be sharded, or on one rank, to lie on a disk, but "
           "are not";
  }
  if (layout.on_disk && !(options.cluster->disk_bytes_per_second > 0)) {
    return "the cluster must have a disk (disk_bytes_per_second) where a "
           "layout "
           "is on_disk, but has none";
  }
  return size_complaint(model.shape, layout, options);
}

void check_options(const LayoutPlanOptions& options) {
  const ClusterSpeeds& cluster = *options.cluster;
  if (options.on_disk == true && cluster.disk_bytes_per_second == 0) {
    throw ConfigError(
        "[planning] disk_bytes_per_second (--disk_speed) must be above 0 where "
        "on_disk is true, but is 0");
  }
  const std::optional<int> degrees[] = {
      options.replicate,
      options.shard,
      options.expert,
      options.context,
      options.tensor,
      options.pipeline};
  const bool has_wrong_degree = std::ranges::any_of(
      degrees, [](const auto& degree) { return degree && *degree < 1; });
  const auto& slowdowns = cluster.measured.layer_slowdowns;
  bool has_wrong_slowdown = false;
  LayerSlowdown before{.tensor = 0};
  for (const LayerSlowdown& each : slowdowns) {
    const double fewer_tokens =
        each.tensor == before.tensor ? before.tokens : 0;
    has_wrong_slowdown |= each.tensor < std::max(1, before.tensor) ||
        !(each.tokens > fewer_tokens) || !(each.factor > 0) ||
        !(each.reduce_seconds >= 0);
    before = each;
  }
  const bool is_wrong = has_wrong_degree || has_wrong_slowdown ||
      options.num_simulated < 1 || options.usable_memory > 1 ||
      options.num_ranks < 1 || options.sequence_length < 1 ||
      options.batch_tokens < 1 || cluster.ranks_per_node < 1 ||
      cluster.memory_bytes == 0 || !(cluster.flops > 0) ||
      !(cluster.memory_bytes_per_second > 0) ||
      !(cluster.inside_node.bytes_per_second > 0) ||
      !(cluster.between_nodes.bytes_per_second > 0) ||
      !(cluster.inside_node.latency_seconds >= 0) ||
      !(cluster.between_nodes.latency_seconds >= 0) ||
      !(cluster.seconds_per_operator >= 0) || !(cluster.attention_flops >= 0) ||
      !(cluster.expert_flops >= 0) ||
      !(cluster.measured.seconds_per_routed_token >= 0) ||
      !(cluster.optimizer_bytes_per_second >= 0) ||
      !(cluster.measured.seconds_per_stepped_parameter >= 0) ||
      !(cluster.measured.seconds_per_message >= 0) ||
      !(cluster.measured.seconds_per_ring_block >= 0) ||
      !(cluster.measured.loss_bytes_per_second >= 0) ||
      !(cluster.disk_bytes_per_second >= 0) ||
      cluster.measured.shared_processors < 0 || !(options.usable_memory > 0) ||
      !(options.expert_imbalance >= 1);
  if (!is_wrong) return;
  throw ConfigError(format(
      "[planning] a plan cannot be made for {} ranks, {} on a node, with {} "
      "tokens per sample and {} per step: these, degrees and num_simulated "
      "must be at least 1, speeds and memory above 0, usable_memory at most 1, "
      "latencies and the speed of disks at least 0, the imbalance of experts "
      "at least 1, and "
      "layer_slowdowns in ascending order of tokens",
      options.num_ranks,
      cluster.ranks_per_node,
      options.sequence_length,
      options.batch_tokens));
}

}  // namespace accelerate::detail
