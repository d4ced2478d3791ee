#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/tensor_parallel.h>

#include "comm/autograd/region.h"
#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// The slice that a placement is; null if every rank has the full tensor.
inline const accelerate::Shard* slice_in(const TensorPlacement& placement) {
  return std::get_if<accelerate::Shard>(&placement);
}

/// Whether every rank has the full tensor.
inline bool is_replicated(const TensorPlacement& placement) {
  return std::holds_alternative<accelerate::Replicate>(placement);
}

/// How a matrix is multiplied by, or a convolution computed, if the ranks have
/// slices of the weight. Slices of a convolution's input and output are of
/// channels.
struct SplitProduct {
  /// Split over inputs: products are summed; else over outputs.
  bool is_rowwise = false;
  TensorPlacement input = Replicate{};
  TensorPlacement output = Replicate{};
  /// The projections of a MultiheadAttention, split by heads, whose code takes
  /// the rows of some of them where queries are not the keys.
  bool is_attention = false;
  bool operator==(const SplitProduct&) const = default;
};

/// How a table of embeddings is read if the ranks have slices of it.
struct SplitEmbedding {
  /// Split over the rows; else over the columns.
  bool is_vocabulary = false;
  TensorPlacement output = Replicate{};
  bool operator==(const SplitEmbedding&) const = default;
};

/// Two layouts of one tensor, before and after.
struct LayoutChange {
  TensorPlacement from = Replicate{};
  TensorPlacement to = Replicate{};
  bool operator==(const LayoutChange&) const = default;
};

/// Which operators a module that stays whole calls with its weight.
enum class WholeModuleKind { product, embedding, norm, convolution };

/// How a module that stays whole is called: with its input and its result in
/// other layouts than the code around it has them in.
struct PreparedModule {
  WholeModuleKind kind = WholeModuleKind::product;
  LayoutChange input = {};
  LayoutChange output = {};
  /// Trailing dimensions of the input that the module mixes, so that they
  /// cannot be sliced.
  std::int64_t num_mixed_dims = 0;
  bool operator==(const PreparedModule&) const = default;

  [[nodiscard]] bool works_on_slices() const {
    return slice_in(input.to) != nullptr;
  }
};

/// What tensor parallelism does with one parameter.
struct SplitParameter {
  std::string name;    ///< of the row in the table
  std::string module;  ///< of the first module that uses it
  /// The dimension that is split; unset: every rank has the full parameter.
  std::optional<std::int64_t> dim = std::nullopt;
  /// If above 0, slices are of some of so many equal pieces; of a full parameter,
  /// each rank uses its slice.
  std::int64_t num_heads = 0;
  /// Rows of the projections in one matrix: each rank has its heads of each.
  /// Empty: one projection.
  std::vector<std::int64_t> projections = {};
  std::optional<SplitProduct> product = std::nullopt;
  std::optional<SplitEmbedding> embedding = std::nullopt;
  /// Set for a module that stays whole. Says what happens to the gradient where an
  /// operator takes the weight; `sums_gradient` where one takes only the bias.
  std::optional<PreparedModule> prepared = std::nullopt;
  /// Ranks use it on slices of the sequence, so each has a summand of its
  /// gradient.
  bool sums_gradient = false;

  /// Whether operators on it are done otherwise.
  [[nodiscard]] bool is_watched() const {
    return product || embedding || prepared || sums_gradient;
  }
};

/// Where slices of a parameter with `size` indices along `split.dim` begin, one
/// per rank, and the end.
std::vector<std::int64_t>
begins_of(const SplitParameter& split, std::int64_t size, int num_ranks);

/// The rows of a parameter with several projections that each rank has.
std::vector<std::vector<IndexRange>> rows_by_head(
    const SplitParameter& split,
    int num_ranks);

/// What `plan`, and layers that say so themselves (ParallelLayer), mean for the
/// parameters of `module`; parameters that are left alone are left out. Throws
/// one ConfigError with everything that is wrong with the plan for `num_ranks`
/// ranks.
std::vector<SplitParameter> plan_splits(
    const torch::nn::Module& module,
    const ParameterTable& table,
    const ParallelizePlan& plan,
    int num_ranks);

}  // namespace accelerate::detail
