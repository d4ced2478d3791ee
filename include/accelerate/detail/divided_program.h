#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/tensor_parallel.h>

namespace accelerate::detail {

/// A parameter that tensor parallelism divides, or whose gradient it sums.
struct DividedParameter {
  at::Tensor tensor;
  /// Dotted name of the module that has it, for messages.
  std::string module = {};
  /// The first index of each rank's slice along the dimension that is divided,
  /// and the end; empty if every rank has the full parameter.
  std::vector<std::int64_t> begins = {};
  /// Whether the slices are those of several projections in one matrix.
  bool has_projections = false;
  /// How ranks compute together what the layer computes with it.
  struct Layer {
    /// Divided over its inputs, or, for an embedding, over its rows.
    bool is_rowwise = false;
    TensorPlacement input = Replicate{};
    TensorPlacement output = Replicate{};
    /// The weight of a product is inputs x outputs.
    bool is_transposed = false;
  };
  /// Set if code multiplies by it or looks up its rows.
  std::optional<Layer> product = std::nullopt;
  std::optional<Layer> embedding = std::nullopt;
  /// The plan says that gradients of the ranks are summands.
  bool sums_gradient = false;
};

/// A module whose code is a graph, in which sizes are constants: numbers of
/// attention heads, say.
class ACCELERATE_API DividedProgram {
 public:
  DividedProgram() = default;
  DividedProgram(const DividedProgram&) = default;
  DividedProgram& operator=(const DividedProgram&) = default;
  virtual ~DividedProgram();

  /// Whether code looks up rows of the parameter.
  [[nodiscard]] virtual bool is_embedding(
      const at::Tensor& parameter) const = 0;
  /// The plan that the program's author has for it, with names of its own
  /// modules; empty if there is none.
  [[nodiscard]] virtual ParallelizePlan own_plan() const = 0;
  /// From now on, layers with these parameters return what `rank` computes
  /// according to their placements. Returns the other parameters that code
  /// combines with such results, whose gradients must be summed over the ranks.
  /// Throws ConfigError, naming the operator and changing nothing, if code
  /// needs more than a rank has.
  virtual std::vector<at::Tensor> divide(
      const std::vector<DividedParameter>& parameters,
      int rank) = 0;
  /// While parameters are full, code runs as before divide().
  virtual void set_full(bool is_full) = 0;
};

}  // namespace accelerate::detail
