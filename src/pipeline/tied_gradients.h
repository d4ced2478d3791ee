#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <accelerate/world.h>

#include "params/parameter_table.h"
#include "pipeline/stages.h"

namespace accelerate::detail {

/// Parameters that several stages have, each of which computes a summand of
/// their gradients. All ranks of the pipeline make the same calls, in the same
/// order.
class TiedGradients {
 public:
  TiedGradients() = default;
  /// Connects the ranks that have each parameter, and makes its first values
  /// those of the first stage that has it. `pipeline_ranks`: their ranks in the
  /// world.
  TiedGradients(
      const World& world,
      const std::vector<int>& pipeline_ranks,
      const std::vector<TiedParameter>& tied);

  /// Called before a step of the pipeline adds to the gradients. What an
  /// earlier one has summed stays on one rank of each parameter's only, so that
  /// the next sum counts it once.
  void begin_step(const ParameterTable& table);

  /// Replaces the gradients with their sums over the stages. A stage without a
  /// gradient has a zero; a parameter without any keeps none.
  void sum(const ParameterTable& table);

 private:
  struct Entry {
    at::Tensor tensor;
    /// The gradient that sum() left; expired if the program has dropped it.
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> summed;
  };
  /// The parameters that the same ranks have.
  struct Tie {
    Group group;
    std::vector<Entry> entries;
  };

  std::vector<Tie> ties_;
};

}  // namespace accelerate::detail
