#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/exported_model.h>

#include "exported/divide/program_divider.h"
#include "exported/graph/compiler.h"
#include "exported/graph/input_sizes.h"
#include "exported/graph/instruction.h"
#include "exported/graph/interpreter.h"
#include "exported/load/weights.h"
#include "format/exported/exported_archive.h"

namespace accelerate::detail {

/// What a graph reads at one of its inputs.
struct BoundInput {
  /// Undefined for an argument of forward(). Module::to() and the library
  /// change a parameter's data, never its handle.
  at::Tensor tensor = {};
  /// Belongs to the program, not to a module, and follows the device of the
  /// module.
  bool is_own = false;
  /// An argument of forward().
  bool is_given = false;
  /// The name of a parameter; empty for others.
  std::string parameter = {};
  /// Computed by an earlier stage, so a gradient may flow through it.
  bool has_gradient = false;
};

/// A graph together with the tensors that it reads.
class BoundGraph {
 public:
  BoundGraph() = default;
  /// `inputs`: one per input of the code. `targets`: per output, the buffer
  /// that gets it, undefined for a result.
  BoundGraph(
      Code code,
      std::vector<BoundInput> inputs,
      std::vector<std::string> input_names,
      InputSizes sizes,
      std::vector<at::Tensor> targets);
  /// `tensors`: the program's, by dotted name. Throws CheckpointError if one is
  /// missing.
  BoundGraph(
      const ExportedProgram& program,
      Code code,
      const LoadedTensors& tensors);

  /// `given` has the inputs of forward(), as many as the graph takes.
  std::vector<c10::IValue> run(
      std::vector<c10::IValue> given,
      RunContext context);
  /// Whether an operator looks up rows of the parameter.
  [[nodiscard]] bool is_embedding(const at::Tensor& parameter) const;
  /// The graph that one rank runs (program_divider.h).
  [[nodiscard]] Code divided(ProgramDivider& divider) const;
  /// Runs this graph, which it borrows, instead; null: its own.
  void replace_code(const Code* code) { other_code_ = code; }
  /// Makes instructions of the chosen modules follow the root's mode.
  void follow_root(
      const std::function<bool(const torch::nn::Module&)>& is_chosen);
  [[nodiscard]] std::size_t num_instructions() const {
    return code_.instructions.size();
  }
  [[nodiscard]] const std::vector<std::string>& input_names() const {
    return input_names_;
  }
  [[nodiscard]] const Code& code() const { return code_; }
  [[nodiscard]] const std::vector<BoundInput>& inputs() const {
    return inputs_;
  }
  [[nodiscard]] const InputSizes& sizes() const { return sizes_; }
  [[nodiscard]] const std::vector<at::Tensor>& targets() const {
    return targets_;
  }

 private:
  [[nodiscard]] std::optional<c10::Device> device_of(
      const std::vector<c10::IValue>& given) const;
  std::vector<c10::IValue> all_inputs(
      std::vector<c10::IValue> given,
      c10::Device device);

  Code code_;
  const Code* other_code_ = nullptr;
  std::vector<BoundInput> inputs_;
  std::vector<std::string> input_names_;
  InputSizes sizes_;
  /// Per output: the buffer that gets it, undefined for a result of forward().
  std::vector<at::Tensor> targets_;
  /// Per output: the name of the result, or of the buffer.
  std::vector<std::string> result_names_;
};

/// Everything that the root module of an exported program holds.
class LoadedProgram {
 public:
  /// Implements DividedProgram::divide().
  std::vector<at::Tensor> divide(
      const std::vector<DividedParameter>& parameters,
      int rank);
  void set_full(bool is_full);

  BoundGraph training;
  /// Unset if the training graph serves eval() as well.
  std::optional<BoundGraph> evaluation;
  std::shared_ptr<const std::vector<std::string>> output_names;
  c10::DeviceType exported_on = c10::kCPU;
  /// Whether accelerate_cpp_export.py wrote it.
  bool is_described = false;
  std::optional<at::ScalarType> autocast;
  /// Hugging Face's plan, for modules that have parameters.
  std::vector<std::pair<std::string, std::string>> tp_plan;

  /// Runs the graph of this mode of the root.
  std::vector<c10::IValue> run(
      std::vector<c10::IValue> given,
      bool is_training);

 private:
  /// One rank's graphs for `training` and `evaluation`.
  struct Divided {
    Code training;
    std::optional<Code> evaluation;
  };
  std::optional<Divided> divided_;
};

/// A result as a tensor: a number becomes a 0-d tensor, None and strings an
/// undefined one.
at::Tensor result_tensor(const c10::IValue& value);

}  // namespace accelerate::detail
