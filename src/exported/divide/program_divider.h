#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/divided_program.h>

#include "exported/divide/divided_call.h"
#include "exported/graph/instruction.h"

namespace accelerate::detail {

/// Changes graphs whose parameters tensor parallelism divides, so that they
/// compute what one rank has. Follows each divided value through the graph, by
/// the sizes that the file has, up to the layer that takes it: constants that
/// are sizes become those of the rank's slices. Throws ConfigError, naming the
/// operator with its module and line, where it needs more than a rank has.
class ProgramDivider {
 public:
  ProgramDivider(const std::vector<DividedParameter>& parameters, int rank);

  /// A tensor that is an input of a graph.
  struct Input {
    /// Undefined for inputs that are not parameters.
    at::Tensor parameter;
    std::string name;
    /// It is not a parameter, but a gradient may flow to it.
    bool has_gradient = false;
  };
  /// Changes a program's graph. `results`: names of its outputs.
  void divide(
      Code& code,
      const std::vector<Input>& inputs,
      const std::vector<std::string>& results);

  /// The parameters that every rank has in full, and whose gradients must be
  /// summed, in all graphs so far.
  [[nodiscard]] std::vector<at::Tensor> summed() const;

 private:
  struct Parameter {
    at::Tensor tensor;
    std::string name;
    /// Null if every rank has it in full.
    const DividedParameter* divided = nullptr;
    /// Where it is used with divided values, and with others; empty if it is
    /// not.
    std::string with_slices = {};
    std::string with_full = {};
  };
  using Values = std::vector<DividedValue>;

  Values follow(Code& code, Values values, bool records_gradients);
  void step(
      Instruction& instruction,
      const Code& code,
      Values& values,
      bool records_gradients);
  void
  step_into(Instruction& instruction, Values& values, bool records_gradients);
  void call_operator(DividedCall& call, Values& values, bool records_gradients);
  /// Whether the operator multiplies by a divided weight, looks it up, or
  /// transposes it.
  bool use_slice(DividedCall& call);
  void multiply(DividedCall& call, int input, int weight);
  void look_up(DividedCall& call, int weight, int indices);
  void meet(DividedCall& call);
  void set_gradients(
      const DividedCall& call,
      Values& values,
      bool records_gradients);
  [[nodiscard]] int index_of(const Input& input);
  [[nodiscard]] const DividedParameter& divided(
      const DividedValue& value) const {
    return *parameters_[static_cast<std::size_t>(value.parameter)].divided;
  }
  void use_with_full(const DividedValue& value, const std::string& place);
  void require_one_use() const;

  const std::vector<DividedParameter>& divided_;
  int rank_;
  std::vector<Parameter> parameters_;
};

}  // namespace accelerate::detail
