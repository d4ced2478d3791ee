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

/// The placement's Shard; null if every rank has the full tensor.
inline const accelerate::Shard* slice_in(const TensorPlacement& placement) {
  return std::get_if<accelerate::Shard>(&placement);
}

/// Whether every rank has the full tensor.
inline bool is_replicated(const TensorPlacement& placement) {
  return std::holds_alternative<accelerate::Replicate>(placement);
}

/// How a matrix product or a convolution is computed if the ranks have slices
/// of the weight. A convolution's input and output are sliced by channel.
struct SplitProduct {
  /// True if split over inputs, so that products are summed; otherwise split
  /// over outputs.
  bool is_rowwise = false;
  TensorPlacement input = Replicate{};
  TensorPlacement output = Replicate{};
  /// True for the projections of a MultiheadAttention, split by heads. Its code
  /// takes the rows of some projections where queries are not the keys.
  bool is_attention = false;
  /// The weight is inputs x outputs (Conv1D of Hugging Face), so that rows of
  /// the input and the output are all tokens.
  bool is_transposed = false;
  bool operator==(const SplitProduct&) const = default;
};

/// How an embedding table is read if the ranks have slices of it.
struct SplitEmbedding {
  /// True if split over rows; otherwise over columns.
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

/// The operators that a module which is not split calls with its weight.
enum class WholeModuleKind { product, embedding, norm, convolution };

/// How a module that is not split is called: with its input and result in other
/// layouts than in the code around it.
struct PreparedModule {
  WholeModuleKind kind = WholeModuleKind::product;
  LayoutChange input = {};
  LayoutChange output = {};
  /// Number of trailing input dimensions that the module mixes and that
  /// therefore cannot be sliced.
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
  /// If above 0, the parameter consists of this many equal pieces, and slices
  /// are of whole pieces; a rank uses only its slice of a full parameter.
  std::int64_t num_heads = 0;
  /// Number of rows of each projection in one matrix: each rank has its heads
  /// of each. Empty: one projection.
  std::vector<std::int64_t> projections = {};
  std::optional<SplitProduct> product = std::nullopt;
  std::optional<SplitEmbedding> embedding = std::nullopt;
  /// Set for a module that is not split. Says what happens to the gradient
  /// where an operator takes the weight; `sums_gradient` says it where one
  /// takes only the bias.
  std::optional<PreparedModule> prepared = std::nullopt;
  /// True if ranks use it on slices of the sequence, so each has a summand of
  /// its gradient.
  bool sums_gradient = false;

  /// Whether operators on it are intercepted.
  [[nodiscard]] bool is_watched() const {
    return product || embedding || prepared || sums_gradient;
  }
};

/// The first index of each rank's slice of a parameter with `size` indices
/// along `split.dim`, and the end.
std::vector<std::int64_t>
begins_of(const SplitParameter& split, std::int64_t size, int num_ranks);

/// The rows that each rank has of a parameter with several projections.
std::vector<std::vector<IndexRange>> rows_by_head(
    const SplitParameter& split,
    int num_ranks);

/// Returns what `plan`, and layers with a plan of their own (ParallelLayer),
/// mean for the parameters of `module`; leaves out parameters that are not
/// affected. Throws one ConfigError with everything that is wrong with the plan
/// for `num_ranks` ranks.
std::vector<SplitParameter> plan_splits(
    const torch::nn::Module& module,
    const ParameterTable& table,
    const ParallelizePlan& plan,
    int num_ranks);

}  // namespace accelerate::detail
