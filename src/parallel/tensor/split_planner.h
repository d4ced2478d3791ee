#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/tensor_parallel.h>

#include "parallel/tensor/divided_programs.h"
#include "parallel/tensor/split_layers.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

/// Translates the styles of modules into splits of their parameters.
class SplitPlanner {
 public:
  /// `table` must outlive the planner. `programs`: those of the model.
  SplitPlanner(
      const ParameterTable& table,
      int num_ranks,
      DividedPrograms programs)
      : table_(table), num_ranks_(num_ranks), programs_(std::move(programs)) {}

  void add(
      const std::string& name,
      const torch::nn::Module& module,
      const ParallelStyle& style);
  void complain_of_pattern(
      const std::string& pattern,
      const std::vector<std::string>& names);

  /// Returns everything that was added. Throws ConfigError with all complaints.
  std::vector<SplitParameter> finish();

 private:
  struct StyledModule {
    std::string name;
    const torch::nn::Module* module = nullptr;
    ParallelStyle style;
  };
  /// Changes of layout around a module.
  struct Preparation {
    std::string name;
    const torch::nn::Module* module = nullptr;
    std::optional<LayoutChange> input = std::nullopt;
    std::optional<LayoutChange> output = std::nullopt;
  };

  struct Layer {
    Layer() = default;
    Layer(std::string its_name, const torch::nn::Module& its_module);

    [[nodiscard]] bool is_convolution() const { return num_weight_dims > 2; }
    /// Whether a placement divides what the layer mixes: the last dimension, or
    /// the channels of a convolution.
    [[nodiscard]] bool is_features(const TensorPlacement& placement) const;
    /// Returns the placement; for Shard{-1} and Shard{1} of a convolution, the
    /// one of its channels, counted from the end.
    [[nodiscard]] TensorPlacement features_in(
        const TensorPlacement& placement) const;

    std::string name;
    const torch::nn::Module* module = nullptr;
    /// The most dimensions that its weight can have: 2, or a convolution's.
    std::int64_t num_weight_dims = 2;
    /// Its weight is inputs x outputs.
    bool is_transposed = false;
  };

  void complain(std::string_view what);

  // Modules that are split, or that work on slices they get.
  void apply_style(const StyledModule& each);
  void apply(const ColwiseParallel& style);
  void apply(const RowwiseParallel& style);
  void apply(const SequenceParallel& style);
  // Preparations have been merged with other styles before.
  template <class Preparation>
    requires(
        std::is_same_v<Preparation, PrepareModuleInput> ||
        std::is_same_v<Preparation, PrepareModuleOutput> ||
        std::is_same_v<Preparation, PrepareModuleInputOutput>)
  void apply(const Preparation&) {}
  /// `logits`: the layout of the results of a last layer that shares the table.
  void split_embedding(
      bool is_vocabulary,
      const TensorPlacement& output,
      const TensorPlacement& logits);
  void require_one_group();
  void require_heads(
      std::int64_t heads,
      const std::vector<std::int64_t>& projections,
      std::int64_t size);
  void split_attention(const ColwiseParallel& style);
  void split_heads(SplitProduct product);
  [[nodiscard]] std::int64_t heads_of_attention() const;

  // Modules that are not split, between changes of layout
  // (prepared_modules.cpp).
  void prepare(
      const std::string& name,
      const torch::nn::Module& module,
      const std::optional<LayoutChange>& input,
      const std::optional<LayoutChange>& output);
  void add_preparation(
      std::string name,
      const torch::nn::Module* module,
      bool is_input,
      const LayoutChange& change);
  /// Whether the changes were merged into another style of the module.
  bool merge(const Preparation& each);
  template <class Style>
  void merge_into(Style& style, const Preparation& each);
  void apply_preparation(const Preparation& each);

  /// The entry of the module's parameter `key`; null if there is none.
  SplitParameter* entry(const std::string& key);
  /// Splits a parameter along `dim`.
  SplitParameter* take(const std::string& key, std::int64_t dim);
  /// Leaves a parameter full, with a gradient that is summed.
  void share(const std::string& key);

  template <class Use>
  void assign(
      const SplitParameter& split,
      std::optional<Use>& use,
      const Use& wanted);

  const ParameterTable& table_;
  int num_ranks_;
  DividedPrograms programs_;
  /// The module being planned.
  Layer layer_;
  std::size_t num_parameters_ = 0;
  std::vector<StyledModule> styled_;
  std::vector<Preparation> preparations_;
  std::vector<std::unique_ptr<SplitParameter>> splits_;
  /// Embedding tables, and how one that is also the last layer multiplies.
  std::vector<std::pair<std::string, SplitProduct>> tied_;
  std::vector<std::string> complaints_;
};

}  // namespace accelerate::detail
