#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/tensor_parallel.h>

#include "comm/autograd/region.h"
#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// How a matrix is multiplied by if the ranks have slices of it.
struct SplitProduct {
  /// Split over inputs: products are summed; else over outputs.
  bool is_rowwise = false;
  TensorPlacement input = Replicate{};
  TensorPlacement output = Replicate{};
  bool operator==(const SplitProduct&) const = default;
};

/// How a table of embeddings is read if the ranks have slices of it.
struct SplitEmbedding {
  /// Split over the rows; else over the columns.
  bool is_vocabulary = false;
  TensorPlacement output = Replicate{};
  bool operator==(const SplitEmbedding&) const = default;
};

/// What tensor parallelism does with one parameter.
struct SplitParameter {
  std::string name;    ///< of the row in the table
  std::string module;  ///< of the first module that uses it
  /// The dimension that is split; unset: every rank has the full parameter.
  std::optional<std::int64_t> dim = std::nullopt;
  /// If above 0, slices are of some of so many equal pieces.
  std::int64_t num_heads = 0;
  /// Rows of the projections in one matrix: each rank has its heads of each.
  /// Empty: one projection.
  std::vector<std::int64_t> projections = {};
  std::optional<SplitProduct> product = std::nullopt;
  std::optional<SplitEmbedding> embedding = std::nullopt;
  /// Ranks use it on slices of the sequence, so each has a summand of its
  /// gradient.
  bool sums_gradient = false;

  /// Whether operators on it are done otherwise.
  [[nodiscard]] bool is_watched() const {
    return product || embedding || sums_gradient;
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
/// parameters of `module`; parameters that are left alone are left out. Throws one ConfigError with everything that is wrong
/// with the plan for `num_ranks` ranks.
std::vector<SplitParameter> plan_splits(
    const torch::nn::Module& module,
    const ParameterTable& table,
    const ParallelizePlan& plan,
    int num_ranks);

}  // namespace accelerate::detail
