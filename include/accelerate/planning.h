#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/detail/measured_costs.h>
#include <accelerate/export.h>
#include <accelerate/fully_sharded.h>
#include <accelerate/pipeline_schedule.h>

// Chooses the layout of a training run (degrees of parallelism, sharding,
// schedule and micro-batches) by simulating steps (planner.h,
// `accelerate-cpp plan`). Needs no LibTorch.

namespace accelerate {

/// The sizes that determine a transformer's time, memory and traffic.
struct TransformerShape {
  // The layers.

  /// Number of blocks.
  std::int64_t num_layers = 0;
  /// Number of elements of a token between blocks.
  std::int64_t hidden_size = 0;
  /// Number of attention heads.
  std::int64_t num_heads = 0;
  /// Number of different tokens.
  std::int64_t vocabulary = 0;
  /// Number of key and value heads; 0: num_heads.
  std::int64_t num_kv_heads = 0;
  /// 0: hidden_size / num_heads.
  std::int64_t head_size = 0;
  /// Size of the MLP; 0: 4 x hidden_size.
  std::int64_t intermediate_size = 0;
  /// The MLP has a gate, which is a third matrix.
  bool is_gated = false;
  /// The output layer shares the embedding's weight.
  bool is_tied = false;

  // A mixture of experts in place of the MLP.

  /// 0: none.
  std::int64_t num_experts = 0;
  /// Experts per token.
  std::int64_t top_k = 0;
  /// Number of elements between an expert's matrices.
  std::int64_t expert_intermediate_size = 0;
  /// Size of the shared expert; 0: none.
  std::int64_t shared_intermediate_size = 0;
  /// Number of leading layers that have an MLP instead of experts.
  std::int64_t num_dense_layers = 0;

  /// Number of parameters, and number of parameters that each token uses.
  [[nodiscard]] ACCELERATE_API std::int64_t num_parameters() const;
  /// Number of parameters that each token uses.
  [[nodiscard]] ACCELERATE_API std::int64_t num_active_parameters() const;
};

/// A connection between two ranks.
struct LinkSpeed {
  /// Time of an empty message.
  double latency_seconds = 0;
  /// Bandwidth of one rank in one direction.
  double bytes_per_second = 0;
};

/// The link of a GPU, as fast as large collectives usually are on it: 0.8 of
/// the data sheet for "nvlink3" (A100), "nvlink4" (H100, H200), "nvlink5"
/// (B200), "pcie4" and "pcie5" (16 lanes), 0.9 for a port of InfiniBand, "hdr",
/// "ndr" or "xdr" (200, 400 and 800 Gb/s). Throws ConfigError listing the names
/// for another one. Assumptions, not measurements.
[[nodiscard]] ACCELERATE_API LinkSpeed link_named(std::string_view name);

/// Speeds of the ranks and of the links between them. The defaults roughly
/// describe nodes of eight H100s with 400 Gb/s for each GPU.
struct ClusterSpeeds {
  // A node.

  /// Number of ranks of one machine.
  int ranks_per_node = 8;
  /// Memory of one rank's device.
  std::uint64_t memory_bytes = 80'000'000'000;

  // Computing.

  /// Operations per second that 16-bit matrix products actually reach, rather
  /// than the peak on the data sheet.
  double flops = 400e12;
  /// Operations per second of 32-bit matrix products. 0: half of `flops`.
  double fp32_flops = 0;
  /// Bandwidth of that memory.
  double memory_bytes_per_second = 2.5e12;
  /// Fixed overhead of an operator.
  double seconds_per_operator = 4e-6;
  /// Operations per second that attention reaches. 0: as for products.
  double attention_flops = 0;
  /// Operations per second that experts reach, whose products are smaller.
  /// 0: as for products.
  double expert_flops = 0;
  /// Bytes per second at which an optimizer step reads and writes parameters,
  /// gradients and state. 0: memory_bytes_per_second.
  double optimizer_bytes_per_second = 0;

  /// Bytes per second that the disk of a node reads, or writes, for all its
  /// ranks together. 0: layouts with files on a disk are not considered.
  double disk_bytes_per_second = 0;

  // Messages.

  /// Link between ranks of one machine.
  LinkSpeed inside_node{3e-6, 300e9};
  /// Link between ranks of different machines.
  LinkSpeed between_nodes{8e-6, 50e9};

  /// Set by measure_cluster(); leave it alone otherwise.
  detail::MeasuredCosts measured = {};
};

/// What is sharded along `shard`.
enum class LayoutSharding {
  /// Nothing: `shard` is 1.
  none,
  /// Optimizer state (ZeRO-1), gradients as well (ZeRO-2), parameters as well
  /// (FSDP, ZeRO-3).
  optimizer,
  /// ZeRO-2.
  gradients,
  /// FSDP, ZeRO-3.
  parameters,
};

/// A way of dividing a training run among ranks.
struct TrainingLayout {
  // Degrees.

  /// Number of replicas.
  int replicate = 1;
  /// Number of ranks that share a replica.
  int shard = 1;
  /// Folds into replicate x shard.
  int expert = 1;
  /// Number of ranks that divide a sequence.
  int context = 1;
  /// Number of ranks that split each layer.
  int tensor = 1;
  /// Number of stages, in the sense of ranks along the pipeline.
  int pipeline = 1;

  // How each axis works.

  /// What is sharded along `shard`.
  LayoutSharding sharding = LayoutSharding::none;
  /// The order of micro-batches in a pipeline.
  PipelineScheduleKind schedule = PipelineScheduleKind::one_f_one_b;
  /// Stages per rank of a pipeline.
  int num_chunks = 1;

  // Micro-batches.

  /// Samples per micro-batch, for each rank that reads different data.
  std::int64_t micro_batch = 1;
  /// Micro-batches per step, of a pipeline or of gradient accumulation.
  std::int64_t num_micro_batches = 1;
  /// Whether activations are recomputed in backward.
  bool recomputes = false;
  /// Shards, their gradients and optimizer state are in files while nothing
  /// uses them (FullyShardedDataParallelOptions::offload_directory). One rank
  /// then gathers its units like several.
  bool on_disk = false;

  /// The product of the degrees, without `expert`.
  [[nodiscard]] int num_ranks() const {
    return replicate * shard * context * tensor * pipeline;
  }
  /// "shard 8 (parameters), tensor 8, micro-batch 2 x 4, recomputing".
  [[nodiscard]] ACCELERATE_API std::string describe() const;

  bool operator==(const TrainingLayout&) const = default;
};

/// Peak memory of one rank, in bytes.
struct LayoutMemory {
  /// Parameters that the rank holds.
  std::uint64_t weights = 0;
  /// Their gradients.
  std::uint64_t gradients = 0;
  /// Includes fp32 master weights.
  std::uint64_t optimizer_state = 0;
  /// Gathered parameters, gradients in flight, and buffers of a disk.
  std::uint64_t gathered = 0;
  /// Tensors saved for backward.
  std::uint64_t activations = 0;
  /// Bytes on a disk, which total() does not count.
  std::uint64_t on_disk = 0;

  /// The sum of all parts.
  [[nodiscard]] std::uint64_t total() const {
    return weights + gradients + optimizer_state + gathered + activations;
  }
};

/// Times of a simulated step, in seconds.
struct LayoutTimes {
  /// Time of an optimizer step.
  double step_seconds = 0;
  /// Time in which a rank computes, including recomputation.
  double computing = 0;
  /// Time in which the optimizer steps.
  double optimizer = 0;
  /// Waits for the disk that nothing hides.
  double disk = 0;
  /// Waits for other stages of the pipeline.
  double bubble = 0;
  /// Exposed communication (waits that nothing hides), by purpose: "tensor",
  /// "context", "experts", "parameters", "gradients", "pipeline".
  std::map<std::string, double> exposed = {};
  /// Time that those messages are in flight.
  std::map<std::string, double> travelling = {};
};

/// A layout with its memory and times.
struct PlannedLayout {
  /// The layout.
  TrainingLayout layout = {};
  /// Its memory.
  LayoutMemory memory = {};
  /// Its times.
  LayoutTimes times = {};
  /// "memory" if the layout does not fit; otherwise the part of the step that
  /// takes most time besides computing ("bubble", "tensor", ...), or
  /// "computing" if none takes a twentieth of the step.
  std::string binds = {};
};

struct LayoutPlanOptions {
  // The machines.

  /// 0: the ranks of the World that planner.h's plan_layout() is given; other
  /// callers must set it.
  int num_ranks = 0;
  /// Unset: planner.h's plan_layout() measures it, and other callers use
  /// ClusterSpeeds().
  std::optional<ClusterSpeeds> cluster = std::nullopt;
  /// Approximate time spent measuring if `cluster` is unset; at least 0. Less:
  /// fewer calls are timed, and large micro-batches may be left out. See
  /// measure_cluster().
  double measuring_seconds = 15;

  // The training.

  /// Tokens per sample.
  std::int64_t sequence_length = 2048;
  /// Tokens per step over all ranks; rounded down to whole samples, to at least
  /// one.
  std::int64_t batch_tokens = 1 << 20;
  /// The dtype of the model's products.
  FloatType precision = FloatType::bf16;
  /// The optimizer, for the size of its state and the time of its step: adamw,
  /// adam, momentum, adagrad, sgd or lomo.
  std::string optimizer = "adamw";

  // Assumptions.

  /// Uses at most this fraction of the memory: allocators need some of it.
  /// Lower it if a planned layout runs out of memory.
  double usable_memory = 0.92;
  /// Load of the busiest experts over the mean load; 1: perfect balance. Raise
  /// it to what a run shows if its router is less even.
  double expert_imbalance = 1.1;
  /// Directory on the disk of each node, for config_text() of a layout that is
  /// on disk.
  std::string offload_directory = "/nvme";

  // Fixed parts of the layout.

  /// Fields of TrainingLayout that the caller fixes; the planner chooses those
  /// that are unset.
  std::optional<int> replicate = std::nullopt;
  /// See TrainingLayout.
  std::optional<int> shard = std::nullopt;
  /// See TrainingLayout.
  std::optional<int> expert = std::nullopt;
  /// See TrainingLayout.
  std::optional<int> context = std::nullopt;
  /// See TrainingLayout.
  std::optional<int> tensor = std::nullopt;
  /// See TrainingLayout.
  std::optional<int> pipeline = std::nullopt;
  /// See TrainingLayout.
  std::optional<LayoutSharding> sharding = std::nullopt;
  /// See TrainingLayout.
  std::optional<bool> recomputes = std::nullopt;
  /// Unset: layouts on a disk are considered as well if the cluster has one
  /// (ClusterSpeeds::disk_bytes_per_second).
  std::optional<bool> on_disk = std::nullopt;

  // The search.

  /// Number of layouts to simulate: the best ones by estimate. Raise it to find
  /// layouts that the estimate underrates; planning takes longer.
  std::size_t num_simulated = 48;
};

/// Simulated layouts of a training run. A value.
class ACCELERATE_API LayoutPlan {
 public:
  /// `fitting`: layouts that fit, fastest first. `not_fitting`: the best of the
  /// others, by the memory they lack.
  LayoutPlan(
      TransformerShape shape,
      LayoutPlanOptions options,
      std::vector<PlannedLayout> fitting,
      std::vector<PlannedLayout> not_fitting,
      std::size_t num_considered);

  /// The layouts that fit, fastest first.
  [[nodiscard]] const std::vector<PlannedLayout>& layouts() const {
    return fitting_;
  }
  /// The best of the others, by the memory they lack.
  [[nodiscard]] const std::vector<PlannedLayout>& not_fitting() const {
    return not_fitting_;
  }
  /// Number of layouts that were considered.
  [[nodiscard]] std::size_t num_considered() const { return num_considered_; }
  /// Throws ConfigError if no layout fits, stating how much memory the smallest
  /// one needs.
  [[nodiscard]] const PlannedLayout& best() const;

  /// Describes the best layout, where its time goes and why others lose.
  [[nodiscard]] std::string explain(std::size_t max_layouts = 8) const;
  /// The best layout as a config file for `accelerate-cpp launch`.
  [[nodiscard]] std::string config_text() const;

 private:
  TransformerShape shape_;
  LayoutPlanOptions options_;
  std::vector<PlannedLayout> fitting_;
  std::vector<PlannedLayout> not_fitting_;
  std::size_t num_considered_;
};

/// Plans the training of a transformer. Throws ConfigError for invalid numbers
/// and impossible degrees.
ACCELERATE_API LayoutPlan
plan_layout(const TransformerShape& shape, const LayoutPlanOptions& options);

/// Simulates one layout. Throws ConfigError if its degrees do not match the
/// number of ranks or the model.
ACCELERATE_API PlannedLayout simulate_layout(
    const TransformerShape& shape,
    const TrainingLayout& layout,
    const LayoutPlanOptions& options);

/// Reads the shape of a transformer from a Hugging Face config.json, at `path`
/// or in that directory. Throws ConfigError if there is none or if it does not
/// give the whole shape.
ACCELERATE_API TransformerShape read_transformer_shape(const std::string& path);

/// A table with the best layout for each number of ranks, and what limits it.
ACCELERATE_API std::string scaling_table(
    const TransformerShape& shape,
    const LayoutPlanOptions& options,
    const std::vector<int>& num_ranks);

}  // namespace accelerate
