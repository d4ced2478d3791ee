#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/exported/exported_graph.h"

namespace accelerate::detail {

/// One input of the graph.
struct ExportedInput {
  enum class Kind {
    parameter,
    buffer,
    /// A buffer that is not part of the state dict.
    hidden_buffer,
    /// A tensor that is an attribute of a module, or appears in its code.
    constant,
    /// An argument of forward().
    user,
    /// A number, string or None that was an argument of forward() when the
    /// program was exported. Its value is part of the graph.
    fixed,
  };
  Kind kind = Kind::user;
  /// The dotted name of the tensor, or the argument's: "input_ids", "batch.0".
  std::string name;
};

struct ExportedOutput {
  /// The buffer that gets the value after the run; empty for a result of
  /// forward().
  std::string buffer;
  /// A result's name: "logits", "pair.1"; its index for a tuple; empty for the
  /// only one.
  std::string name;
};

/// Size of a dimension of an input: a number, or an expression of symbols as
/// SymPy prints it.
struct ExportedSize {
  std::optional<std::int64_t> number;
  std::string expression;
};

/// What is known about a tensor argument of forward().
struct ExportedInputTensor {
  /// Position among the graph's inputs.
  std::size_t input = 0;
  ExportedDtype dtype = ExportedDtype::float32;
  std::vector<ExportedSize> sizes;
};

struct ExportedRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

/// A program of torch.export, version 8 of the schema (PyTorch 2.11 to 2.15).
struct ExportedProgram {
  ExportedGraph graph;
  /// One per input and output of the graph.
  std::vector<ExportedInput> inputs;
  std::vector<ExportedOutput> outputs;
  std::vector<ExportedInputTensor> input_tensors;
  /// The range of each symbol, such as "s77".
  std::map<std::string, ExportedRange> ranges;
  /// Python's class names by the modules' dotted names: "layers.0" to
  /// "LlamaDecoderLayer". Modules without operators are missing.
  std::map<std::string, std::string> classes;
  /// The type of the device on which it was exported: "cpu".
  std::string device = "cpu";
  std::string torch_version;
  /// What cannot be run, one complaint each: "arguments of kind as_custom_obj".
  std::vector<std::string> unsupported;
};

/// Reads the JSON of a program. `name` is used in messages. Throws
/// CheckpointError for anything else, ConfigError naming the version for other
/// major versions of the schema. What cannot be run is listed in the result.
ExportedProgram parse_exported_program(
    std::string_view text,
    const std::string& name);

}  // namespace accelerate::detail
