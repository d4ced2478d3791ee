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

/// What the ranks divide among themselves.
enum class MemorySplit {
  /// Nothing: each rank has a replica.
  replicated,
  /// Optimizer state (ZeRO-1). Gradients of a window with several micro-steps
  /// are kept in full.
  zero_1,
  /// Optimizer state and gradients (ZeRO-2).
  zero_2,
  /// Parameters as well, over all ranks (ZeRO-3).
  full_shard,
  /// Parameters as well, over `num_shards` ranks; the groups are replicas.
  hybrid_shard,
};

/// "replicated", "ZeRO-1", "ZeRO-2", "full shard" or "hybrid shard".
[[nodiscard]] ACCELERATE_API std::string_view name_of(MemorySplit split);

/// One way of training a model.
struct MemoryCase {
  MemorySplit split = MemorySplit::replicated;
  int num_ranks = 1;
  /// Ranks that share one model; 1 if it is replicated.
  int num_shards = 1;
  /// fp32: without mixed precision. Otherwise the dtype of autocast and, where
  /// something is sharded, of the parameters that the model computes with.
  FloatType precision = FloatType::fp32;
  bool recomputes = false;
  /// Samples per rank and micro-step.
  std::int64_t micro_batch = 1;
  std::int64_t accumulation_steps = 1;
  /// Linear layers compute in float8 (FP8Recipe) inside of `precision`.
  bool uses_fp8 = false;
  /// Ranks that split each layer, the sequence, and the layers among them.
  int tensor = 1;
  int context = 1;
  int pipeline = 1;

  bool operator==(const MemoryCase&) const = default;
};

/// Bytes of one rank at the moment of a step when it needs most. Rows of two
/// cases may show different moments, so only totals can be compared.
struct MemoryRow {
  MemoryCase at = {};
  std::uint64_t weights = 0;
  std::uint64_t gradients = 0;
  /// Optimizer state, with fp32 master weights.
  std::uint64_t optimizer_state = 0;
  /// Buckets in which gradients travel between replicas.
  std::uint64_t buckets = 0;
  /// Gathered parameters, and gradients on their way to their shards.
  std::uint64_t units = 0;
  /// What operators keep for backward, and what backward computes with.
  std::uint64_t activations = 0;
  /// Temporaries of the optimizer, and freed memory that is kept.
  std::uint64_t workspace = 0;

  [[nodiscard]] std::uint64_t total() const {
    return weights + gradients + optimizer_state + buckets + units +
        activations + workspace;
  }
};

/// A case that fits, and what it costs.
struct MemoryFit {
  MemoryRow row = {};
  /// Predicted time of a step over that of the cheapest conceivable case: a
  /// recomputed forward adds a third; gathering parameters a tenth, or a
  /// twentieth within groups; each doubling of the micro-steps two hundredths.
  /// A rule of thumb, to sort by.
  double relative_time = 1;
};

/// What Accelerator::plan_memory() plans for.
struct MemoryPlanOptions {
  /// Unset: the world's, and those of this node.
  std::optional<int> num_ranks = std::nullopt;
  std::optional<int> num_local_ranks = std::nullopt;
  /// Samples per rank and optimizer step. Unset: those of the example inputs;
  /// with a step function, 1.
  std::optional<std::int64_t> batch_size = std::nullopt;
  /// adamw, adam, momentum, adagrad, sgd or lomo.
  std::string optimizer = "adamw";
  std::vector<FloatType> precisions = {FloatType::fp32, FloatType::bf16};
  /// Class names of the modules that are gathered and recomputed as one. Empty:
  /// the elements of the outermost Sequentials and ModuleLists.
  std::vector<std::string> unit_classes = {};
  /// See ReplicateOptions.
  bool gradient_as_bucket_view = false;
  /// See AcceleratorOptions::keep_freed_blocks.
  bool keep_freed_blocks = true;
};

/// The memory of every way of training a model, known before the run
/// (Accelerator::plan_memory, `accelerate-cpp estimate-memory --fits`). A
/// value.
class ACCELERATE_API MemoryPlan {
 public:
  /// The memory of a case. Must not decrease if the micro-batch grows.
  using Estimate = std::function<MemoryRow(const MemoryCase&)>;

  struct Facts {
    int num_ranks = 1;
    /// Ranks on one node, over which hybrid_shard shards in rows().
    int num_local_ranks = 1;
    /// Samples per rank and optimizer step.
    std::int64_t batch_size = 1;
    std::vector<FloatType> precisions = {FloatType::fp32, FloatType::bf16};
    /// Only cases with float8, if true.
    bool uses_fp8 = false;
    /// Degrees of every case. Their product divides the ranks, and the others
    /// have replicas or shards; those that divide a sequence share shards.
    int tensor = 1;
    int context = 1;
    int pipeline = 1;
    /// Unset: every degree of sharding.
    std::optional<int> num_shards = std::nullopt;
    /// Unset: with and without recomputation.
    std::optional<bool> recomputes = std::nullopt;
    /// How activations were found, and what was left out.
    std::vector<std::string> notes = {};
  };

  /// Throws ConfigError if a number is below 1.
  MemoryPlan(Facts facts, Estimate estimate);

  /// One row for each split that these ranks allow, each precision, without and
  /// with recomputation, all samples in one micro-step.
  [[nodiscard]] const std::vector<MemoryRow>& rows() const { return rows_; }
  /// The memory of any case. Throws ConfigError for one that is impossible: a
  /// number below 1, or degrees that do not divide the ranks.
  [[nodiscard]] MemoryRow row(const MemoryCase& at) const;
  /// The row of rows() for this split, precision and recomputation. Throws
  /// ConfigError if these ranks do not allow it.
  [[nodiscard]] MemoryRow row(
      MemorySplit split,
      FloatType precision = FloatType::fp32,
      bool recomputes = false) const;

  /// Every case that needs at most `num_bytes` per rank, the cheapest first:
  /// for each split, degree of sharding, precision and recomputation the
  /// largest micro-batch that fits. Empty if none does; see smallest().
  [[nodiscard]] std::vector<MemoryFit> fits(std::uint64_t num_bytes) const;
  /// The case that needs least: one sample at a time.
  [[nodiscard]] MemoryRow smallest() const;
  /// The largest micro-batch of this split, precision and recomputation that
  /// fits into `num_bytes`; 1 if none does. A search for a batch size may begin
  /// there (BatchSizeSearchOptions::starting_batch_size).
  [[nodiscard]] std::int64_t starting_batch_size(
      std::uint64_t num_bytes,
      MemorySplit split = MemorySplit::replicated,
      FloatType precision = FloatType::fp32,
      bool recomputes = false) const;

  /// rows() as text, in columns, and the notes.
  [[nodiscard]] std::string table() const;
  /// The first `max_fits` of fits() as text; if there are none, what the
  /// smallest needs.
  [[nodiscard]] std::string explain_fits(
      std::uint64_t num_bytes,
      std::size_t max_fits = 8) const;
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
