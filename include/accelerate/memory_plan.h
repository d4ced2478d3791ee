#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/fully_sharded.h>

namespace accelerate {

/// What is sharded across ranks.
enum class MemorySplit {
  /// Nothing is sharded: each rank has a replica.
  replicated,
  /// Optimizer state (ZeRO-1). With gradient accumulation, each rank keeps full
  /// gradients.
  zero_1,
  /// Optimizer state and gradients (ZeRO-2).
  zero_2,
  /// Parameters as well, over all ranks (ZeRO-3).
  full_shard,
  /// Parameters as well, over groups of `num_shards` ranks; the groups are
  /// replicas of each other.
  hybrid_shard,
};

/// "replicated", "ZeRO-1", "ZeRO-2", "full shard" or "hybrid shard".
[[nodiscard]] ACCELERATE_API std::string_view name_of(MemorySplit split);

/// What lies in files on a disk while nothing uses it (offload_directory,
/// "nvme"), as far as it is sharded.
enum class KeptOnDisk {
  nothing,
  /// Gradients, optimizer state and master weights.
  optimizer,
  /// Shards of parameters.
  parameters,
  all  ///< both
};

/// A configuration of training whose memory is planned.
struct MemoryCase {
  /// How the ranks divide the model's state.
  MemorySplit split = MemorySplit::replicated;
  /// Number of ranks.
  int num_ranks = 1;
  /// Ranks that share one replica; 1 if the model is replicated.
  int num_shards = 1;
  /// fp32: no mixed precision. Otherwise the dtype of autocast and, if the
  /// model is sharded, of the parameters that it computes with.
  FloatType precision = FloatType::fp32;
  /// Whether activations are recomputed in backward, unit by unit.
  bool recomputes = false;
  /// Samples per rank and micro-step.
  std::int64_t micro_batch = 1;
  /// Micro-steps per optimizer step.
  std::int64_t accumulation_steps = 1;
  /// Linear layers compute in float8 (FP8Recipe) within `precision`.
  bool uses_fp8 = false;
  /// Numbers of ranks that split each layer, the sequence, and the sequence of
  /// layers.
  int tensor = 1;
  /// Number of ranks that divide the sequence.
  int context = 1;
  /// Number of ranks that divide the layers among them.
  int pipeline = 1;

  bool operator==(const MemoryCase&) const = default;
};

/// Memory of one rank, in bytes, at the peak of a step. Peaks of two cases can
/// be at different points of the step, so only totals can be compared.
struct MemoryRow {
  /// The case.
  MemoryCase at = {};
  /// Parameters and buffers.
  std::uint64_t weights = 0;
  /// Gradients of the parameters.
  std::uint64_t gradients = 0;
  /// Optimizer state, including fp32 master weights.
  std::uint64_t optimizer_state = 0;
  /// Buckets in which gradients are averaged between replicas.
  std::uint64_t buckets = 0;
  /// Gathered parameters, gradients being reduced to shards, and buffers of
  /// what is on a disk.
  std::uint64_t units = 0;
  /// Tensors saved for backward, and temporaries of backward.
  std::uint64_t activations = 0;
  /// Temporaries of the optimizer, freed memory that is kept for reuse, free
  /// pages between small blocks, and padding of large blocks to whole pages.
  std::uint64_t workspace = 0;
  /// Bytes of the rank's files on a disk, which total() does not count.
  std::uint64_t on_disk = 0;

  /// The sum of all parts.
  [[nodiscard]] std::uint64_t total() const {
    return weights + gradients + optimizer_state + buckets + units +
        activations + workspace;
  }
};

/// A case that fits, and its relative cost.
struct MemoryFit {
  /// The case and its memory.
  MemoryRow row = {};
  /// Predicted step time over that of the cheapest conceivable case.
  /// Recomputing the forward adds a third; gathering parameters adds a tenth,
  /// or a twentieth within groups; each doubling of the micro-steps adds two
  /// hundredths. A rule of thumb for sorting.
  double relative_time = 1;
};

/// Options of plan_memory().
struct MemoryPlanOptions {
  /// Number of ranks; set it to plan for other machines. Unset: the world's.
  std::optional<int> num_ranks = std::nullopt;
  /// Number of ranks on one node. Unset: this node's.
  std::optional<int> num_local_ranks = std::nullopt;
  /// Samples per rank and optimizer step. Unset: the batch size of the example
  /// inputs, or 1 with a step function. If it is large and kernels need much
  /// scratch memory, planning also runs the step with more than 4 samples,
  /// provided that this takes only a fraction of a second.
  std::optional<std::int64_t> batch_size = std::nullopt;
  /// adamw, adam, momentum, adagrad, sgd or lomo.
  std::string optimizer = "adamw";
  /// Precisions to compare.
  std::vector<FloatType> precisions = {FloatType::fp32, FloatType::bf16};
  /// Class names of the modules that are gathered and recomputed as a unit.
  /// Empty: the elements of the outermost Sequentials and ModuleLists.
  std::vector<std::string> unit_classes = {};
  /// What lies in files, on one rank and in every case that shards it.
  KeptOnDisk on_disk = KeptOnDisk::nothing;
  /// See ReplicateOptions.
  bool gradient_as_bucket_view = false;
  /// See AcceleratorOptions::keep_freed_blocks.
  bool keep_freed_blocks = true;
};

/// Predicts a model's training memory for every case before the run
/// (plan_memory(), `accelerate-cpp estimate-memory --fits`). A
/// value.
class ACCELERATE_API MemoryPlan {
 public:
  /// Returns the memory of a case. Must not decrease as the micro-batch grows.
  using Estimate = std::function<MemoryRow(const MemoryCase&)>;

  /// What all cases of a plan have in common.
  struct Facts {
    /// Number of ranks.
    int num_ranks = 1;
    /// Ranks on one node, over which hybrid_shard shards in rows().
    int num_local_ranks = 1;
    /// Samples per rank and optimizer step.
    std::int64_t batch_size = 1;
    /// Precisions to compare.
    std::vector<FloatType> precisions = {FloatType::fp32, FloatType::bf16};
    /// If true, all cases use float8.
    bool uses_fp8 = false;
    /// Degrees of every case. Their product divides the number of ranks; the
    /// remaining degree is for replicas or shards. Ranks along `context` share
    /// shards.
    int tensor = 1;
    /// Number of ranks that divide the sequence.
    int context = 1;
    /// Number of ranks that divide the layers among them.
    int pipeline = 1;
    /// Unset: every degree of sharding.
    std::optional<int> num_shards = std::nullopt;
    /// Unset: with and without recomputation.
    std::optional<bool> recomputes = std::nullopt;
    /// How activations were determined, and what the plan leaves out.
    std::vector<std::string> notes = {};
  };

  /// Throws ConfigError if a number is below 1.
  MemoryPlan(Facts facts, Estimate estimate);
  // Moving copies, so a moved-from plan stays valid.
  MemoryPlan(const MemoryPlan&) = default;
  MemoryPlan& operator=(const MemoryPlan&) = default;
  ~MemoryPlan() = default;

  /// One row for each split that the ranks allow and each precision, without
  /// and with recomputation, with all samples in one micro-step.
  [[nodiscard]] const std::vector<MemoryRow>& rows() const { return rows_; }
  /// Returns the memory of any case. Throws ConfigError for an impossible one:
  /// a number below 1, or degrees that do not divide the number of ranks.
  [[nodiscard]] MemoryRow row(const MemoryCase& at) const;
  /// Returns the entry of rows() for this split, precision and recomputation.
  /// Throws ConfigError if the ranks do not allow it.
  [[nodiscard]] MemoryRow row(
      MemorySplit split,
      FloatType precision = FloatType::fp32,
      bool recomputes = false) const;

  /// Returns the cases that need at most `num_bytes` per rank, cheapest first:
  /// for each split, degree of sharding, precision and recomputation, the one
  /// with the largest micro-batch that fits. Empty if none fits; see
  /// smallest().
  [[nodiscard]] std::vector<MemoryFit> fits(std::uint64_t num_bytes) const;
  /// The case that needs the least memory, with one sample at a time.
  [[nodiscard]] MemoryRow smallest() const;
  /// The largest micro-batch that fits into `num_bytes` with this split,
  /// precision and recomputation; 1 if none fits. A search for a batch size can
  /// start there (BatchSizeSearchOptions::starting_batch_size).
  [[nodiscard]] std::int64_t starting_batch_size(
      std::uint64_t num_bytes,
      MemorySplit split = MemorySplit::replicated,
      FloatType precision = FloatType::fp32,
      bool recomputes = false) const;

  /// rows() as text, in columns, and the notes.
  [[nodiscard]] std::string table() const;
  /// The first `max_fits` of fits() as text; if none fits, how much the
  /// smallest case needs.
  [[nodiscard]] std::string explain_fits(
      std::uint64_t num_bytes,
      std::size_t max_fits = 8) const;
  /// What the plan does not know, one sentence each.
  [[nodiscard]] const std::vector<std::string>& notes() const {
    return facts_.notes;
  }

 private:
  [[nodiscard]] std::vector<MemoryCase> cases(bool every_degree) const;
  [[nodiscard]] std::int64_t largest_micro_batch(
      MemoryCase at,
      std::uint64_t num_bytes) const;

  Facts facts_;
  Estimate estimate_;
  std::vector<MemoryRow> rows_;
};

}  // namespace accelerate
