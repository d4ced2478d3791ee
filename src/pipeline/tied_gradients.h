#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <accelerate/world.h>

#include "params/parameter_table.h"
#include "pipeline/stages.h"

namespace accelerate::detail {

/// Sums the gradients of parameters shared by several stages, each of which
/// computes a summand. All ranks of the pipeline make the same calls, in the
/// same order.
class TiedGradients {
 public:
  TiedGradients() = default;
  /// Connects the ranks that share each parameter, and gives them the initial
  /// values of the first such stage. `pipeline_ranks`: the pipeline's world
  /// ranks.
  TiedGradients(
      const World& world,
      const std::vector<int>& pipeline_ranks,
      const std::vector<TiedParameter>& tied);

  /// Called before a step of the pipeline adds to the gradients. Keeps an
  /// earlier step's sum on only one of each parameter's ranks, so that the next
  /// sum counts it once.
  void begin_step(const ParameterTable& table);

  /// Replaces the gradients with their sums over the stages. A stage without a
  /// gradient contributes zero; a parameter without any keeps none.
  void sum(const ParameterTable& table);

 private:
  struct Entry {
    at::Tensor tensor;
    /// The gradient that sum() left; expired if the program has dropped it.
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> summed;
  };
  /// The parameters shared by the same ranks.
  struct Tie {
    Group group;
    std::vector<Entry> entries;
  };

  std::vector<Tie> ties_;
};

}  // namespace accelerate::detail
