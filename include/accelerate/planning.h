#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/fully_sharded.h>

// Which layout should a training use: degrees of parallelism, sharding, schedule
// and micro-batches, chosen by simulated steps (Accelerator::plan,
// `accelerate-cpp plan`). Needs no LibTorch.

namespace accelerate {

/// The sizes of a transformer that its time, memory and traffic depend on.
struct TransformerShape {
  // The layers.

  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t vocabulary = 0;
  /// Heads of keys and values; 0: num_heads.
  std::int64_t num_kv_heads = 0;
  /// 0: hidden_size / num_heads.
  std::int64_t head_size = 0;
  /// The MLP's; 0: 4 x hidden_size.
  std::int64_t intermediate_size = 0;
  /// The MLP has a gate, a third matrix.
  bool is_gated = false;
  /// The embedding is the output layer, too.
  bool is_tied = false;

  // A mixture of experts in place of the MLP.

  /// 0: none.
  std::int64_t num_experts = 0;
  /// Experts per token.
  std::int64_t top_k = 0;
  std::int64_t expert_intermediate_size = 0;
  /// The shared expert's; 0: none.
  std::int64_t shared_intermediate_size = 0;
  /// Layers, the first ones, that have an MLP nevertheless.
  std::int64_t num_dense_layers = 0;

  /// Number of parameters, and of those that a token uses.
  [[nodiscard]] ACCELERATE_API std::int64_t num_parameters() const;
  [[nodiscard]] ACCELERATE_API std::int64_t num_active_parameters() const;
};

/// A connection between two ranks.
struct LinkSpeed {
  double latency_seconds = 0;
  /// One way, for one rank.
  double bytes_per_second = 0;
};

/// How many times longer a layer takes than the speeds of its parts make of it,
/// in micro-batches of so many tokens, on each of so many ranks along `tensor`.
struct LayerSlowdown {
  double tokens = 0;
  double factor = 1;
  int tensor = 1;
  /// Where ranks share processors: what a sum over these ranks of what the layer
  /// hands on takes while it is computed with, a rank's waits for the others
  /// included. 0: as long as the link makes of it.
  double reduce_seconds = 0;
};

/// How fast ranks and what is between them are. The defaults are roughly those
/// of nodes of eight H100s with 400 Gb/s for each.
struct ClusterSpeeds {
  // A node.

  int ranks_per_node = 8;
  std::uint64_t memory_bytes = 80'000'000'000;

  // Computing.

  /// Operations per second that matrix products of 16 bits reach, rather than
  /// the most that a data sheet promises.
  double flops = 400e12;
  /// The same of 32 bits. 0: half as many.
  double fp32_flops = 0;
  double memory_bytes_per_second = 2.5e12;
  /// What an operator costs besides its work.
  double seconds_per_operator = 4e-6;
  /// Operations per second that attention reaches. 0: those of products.
  double attention_flops = 0;
  /// The same of experts, whose products are smaller. 0: those of products.
  double expert_flops = 0;
  /// What choosing the experts of a token and moving its rows to them and back
  /// takes in a forward, besides what layers touch. Ranks along `tensor` each do
  /// so for all tokens.
  double seconds_per_routed_token = 0;
  /// Bytes per second of the parameters, gradients and state that an optimizer
  /// steps on. 0: those of memory.
  double optimizer_bytes_per_second = 0;
  /// What an optimizer's step of a parameter costs besides its bytes, however
  /// small the shard of it is. Fused optimizers have hardly any such cost.
  double seconds_per_stepped_parameter = 0;
  /// Bytes per second of the logits that a loss writes and reads, which fit into
  /// caches less often than what layers do. 0: those of memory.
  double loss_bytes_per_second = 0;
  /// In ascending order of `tensor`, and of tokens for each; between two numbers
  /// of tokens a factor is between theirs. Empty: 1 for all. A layout takes the
  /// largest degree of `tensor` that is not above its own; where that is 1, ranks
  /// along `tensor`, which have a part of what each token touches, count as many
  /// tokens less.
  std::vector<LayerSlowdown> layer_slowdowns = {};

  // Messages.

  LinkSpeed inside_node{3e-6, 300e9};
  LinkSpeed between_nodes{8e-6, 50e9};
  /// What a message from one rank to another takes besides its bytes, while
  /// ranks compute: shards, rings and pipelines send such messages. 0: the
  /// latency of the link.
  double seconds_per_message = 0;
  /// Where ranks share processors: what each block of keys and values that comes
  /// around a ring costs a forward besides its bytes and the operations of
  /// attention; a backward twice that. 0: a message.
  double seconds_per_ring_block = 0;
  /// Above 0: the ranks of a node are programs on this many processors, which
  /// also copy what ranks send each other, so that nothing is hidden behind
  /// something else; `flops` and the speed of memory are those of a processor.
  int shared_processors = 0;
};

/// What the ranks along `shard` divide.
enum class LayoutSharding {
  none,
  /// Optimizer state (ZeRO-1), gradients as well (ZeRO-2), parameters as well
  /// (FSDP, ZeRO-3).
  optimizer,
  gradients,
  parameters,
};

/// A way of dividing a training among ranks.
struct TrainingLayout {
  // Degrees.

  int replicate = 1;
  int shard = 1;
  /// Folds into replicate x shard.
  int expert = 1;
  int context = 1;
  int tensor = 1;
  int pipeline = 1;

  // How each axis works.

  LayoutSharding sharding = LayoutSharding::none;
  /// The pipeline's: "GPipe", "1F1B", "Interleaved1F1B" or "ZBH1".
  std::string schedule = "1F1B";
  int num_chunks = 1;

  // Micro-batches.

  /// Samples per micro-batch, of each rank that reads different data.
  std::int64_t micro_batch = 1;
  /// Per step: of a pipeline, or of a window of accumulation.
  std::int64_t num_micro_batches = 1;
  bool recomputes = false;

  [[nodiscard]] int num_ranks() const {
    return replicate * shard * context * tensor * pipeline;
  }
  /// "shard 8 (parameters), tensor 8, micro-batch 2 x 4, recomputing".
  [[nodiscard]] ACCELERATE_API std::string describe() const;

  bool operator==(const TrainingLayout&) const = default;
};

/// Bytes of one rank where it needs most.
struct LayoutMemory {
  std::uint64_t weights = 0;
  std::uint64_t gradients = 0;
  /// With fp32 master weights.
  std::uint64_t optimizer_state = 0;
  /// Parameters and gradients on their way.
  std::uint64_t gathered = 0;
  std::uint64_t activations = 0;

  [[nodiscard]] std::uint64_t total() const {
    return weights + gradients + optimizer_state + gathered + activations;
  }
};

/// What a simulated step takes.
struct LayoutTimes {
  double step_seconds = 0;
  /// The time in which a rank computes; recomputing included.
  double computing = 0;
  double optimizer = 0;
  /// Waits for other stages of the pipeline.
  double bubble = 0;
  /// Waits for messages that nothing hides, by what they are for: "tensor",
  /// "context", "experts", "parameters", "gradients", "pipeline".
  std::map<std::string, double> exposed = {};
  /// How long those messages travel.
  std::map<std::string, double> travelling = {};
};

/// A layout with what it costs.
struct PlannedLayout {
  TrainingLayout layout = {};
  LayoutMemory memory = {};
  LayoutTimes times = {};
  /// What it needs more memory than there is, or else which part of the step
  /// takes most time besides computing: "memory", "bubble", "tensor", ...
  std::string binds = {};
};

struct LayoutPlanOptions {
  // The machines.

  /// 0: those of the Accelerator (Accelerator::plan); others need a number.
  int num_ranks = 0;
  /// Unset: measured by Accelerator::plan; else ClusterSpeeds().
  std::optional<ClusterSpeeds> cluster = std::nullopt;
  /// About how long Accelerator::plan measures them, without `cluster`; at least
  /// 0. See Accelerator::measure_cluster.
  double measuring_seconds = 15;

  // The training.

  /// Tokens per sample.
  std::int64_t sequence_length = 2048;
  /// Tokens per step, of all ranks.
  std::int64_t batch_tokens = 1 << 20;
  FloatType precision = FloatType::bf16;
  /// adamw, adam, momentum, adagrad, sgd or lomo.
  std::string optimizer = "adamw";

  // Assumptions.

  /// Use at most this share of the memory: allocators need some of it.
  double usable_memory = 0.92;
  /// Load of the busiest experts over their mean.
  double expert_imbalance = 1.1;

  // What is given.

  /// Degrees that are given; others are chosen. Of TrainingLayout.
  std::optional<int> replicate = std::nullopt;
  std::optional<int> shard = std::nullopt;
  std::optional<int> expert = std::nullopt;
  std::optional<int> context = std::nullopt;
  std::optional<int> tensor = std::nullopt;
  std::optional<int> pipeline = std::nullopt;
  std::optional<LayoutSharding> sharding = std::nullopt;
  std::optional<bool> recomputes = std::nullopt;

  // The search.

  /// Number of layouts that are simulated, the best ones by a formula.
  std::size_t num_simulated = 48;
};

/// The layouts of a training, simulated. A value.
class ACCELERATE_API LayoutPlan {
 public:
  /// Those that fit, fastest first; then the best of those that do not, by the
  /// memory they lack.
  LayoutPlan(
      TransformerShape shape,
      LayoutPlanOptions options,
      std::vector<PlannedLayout> fitting,
      std::vector<PlannedLayout> not_fitting,
      std::size_t num_considered);

  [[nodiscard]] const std::vector<PlannedLayout>& layouts() const {
    return fitting_;
  }
  [[nodiscard]] const std::vector<PlannedLayout>& not_fitting() const {
    return not_fitting_;
  }
  /// The number of layouts that were looked at.
  [[nodiscard]] std::size_t num_considered() const { return num_considered_; }
  /// Throws ConfigError, saying what the smallest needs, if none fits.
  [[nodiscard]] const PlannedLayout& best() const;

  /// The best, where its time goes, why others lose; as text.
  [[nodiscard]] std::string explain(std::size_t max_layouts = 8) const;
  /// The best as a config file of `accelerate-cpp launch`.
  [[nodiscard]] std::string config_text() const;

 private:
  TransformerShape shape_;
  LayoutPlanOptions options_;
  std::vector<PlannedLayout> fitting_;
  std::vector<PlannedLayout> not_fitting_;
  std::size_t num_considered_;
};

/// Plans the training of a transformer. Throws ConfigError for numbers that make
/// no sense, and for degrees that cannot be.
ACCELERATE_API LayoutPlan
plan_layout(const TransformerShape& shape, const LayoutPlanOptions& options);

/// What one layout costs. Throws ConfigError if it is not one of that many ranks
/// or does not fit the model.
ACCELERATE_API PlannedLayout simulate_layout(
    const TransformerShape& shape,
    const TrainingLayout& layout,
    const LayoutPlanOptions& options);

/// The shape that the config.json of a transformer of Hugging Face's describes:
/// of one at `path`, or in that directory. Throws ConfigError if there is none,
/// or not all of the shape in it.
ACCELERATE_API TransformerShape read_transformer_shape(const std::string& path);

/// A page of figures: the best layout for each number of ranks, and what binds
/// there.
ACCELERATE_API std::string scaling_table(
    const TransformerShape& shape,
    const LayoutPlanOptions& options,
    const std::vector<int>& num_ranks);

}  // namespace accelerate
