#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/exported_model.h>

#include "exported/compiler.h"
#include "exported/input_sizes.h"
#include "exported/instruction.h"
#include "exported/interpreter.h"
#include "exported/weights.h"
#include "format/exported/exported_archive.h"

namespace accelerate::detail {

/// A graph with the tensors that it reads.
class BoundGraph {
 public:
  BoundGraph() = default;
  /// `tensors`: the program's, by dotted name. Throws CheckpointError if one is
  /// missing.
  BoundGraph(
      const ExportedProgram& program,
      Code code,
      const LoadedTensors& tensors);

  /// `given`: the inputs that forward() got, as many as the graph has.
  std::vector<c10::IValue> run(
      std::vector<c10::IValue> given,
      RunContext context);
  [[nodiscard]] std::size_t num_instructions() const {
    return code_.instructions.size();
  }
  [[nodiscard]] const std::vector<std::string>& input_names() const {
    return input_names_;
  }

 private:
  struct Input {
    /// Undefined for an argument of forward(). Module::to() and the library
    /// change a parameter's data, never its handle.
    at::Tensor tensor;
    /// Belongs to the program, not to a module, and follows the device of the
    /// module.
    bool is_own = false;
    /// An argument of forward().
    bool is_given = false;
  };
  [[nodiscard]] std::optional<c10::Device> device_of(
      const std::vector<c10::IValue>& given) const;
  std::vector<c10::IValue> all_inputs(
      std::vector<c10::IValue> given,
      c10::Device device);

  Code code_;
  std::vector<Input> inputs_;
  std::vector<std::string> input_names_;
  InputSizes sizes_;
  /// Per output: the buffer that gets it, undefined for a result of forward().
  std::vector<at::Tensor> targets_;
};

/// Everything that the root module of an exported program holds.
class LoadedProgram {
 public:
  BoundGraph training;
  /// Unset if the training graph serves eval() as well.
  std::optional<BoundGraph> evaluation;
  std::shared_ptr<const std::vector<std::string>> output_names;
  c10::DeviceType exported_on = c10::kCPU;
  /// Whether accelerate_cpp_export.py wrote it.
  bool is_described = false;
  std::optional<at::ScalarType> autocast;
};

}  // namespace accelerate::detail
