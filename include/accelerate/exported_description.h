#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace accelerate {

/// The contents of a program of torch.export.
struct ExportedDescription {
  /// A tensor or number that the program takes.
  struct Input {
    /// The name in Python, with that of its place: "batch.0".
    std::string name;
    /// PyTorch's name: "int64"; "size" for an integer.
    std::string dtype;
    /// One per dimension: "16", or "2 to 64" if it may vary.
    std::vector<std::string> sizes;
  };
  /// The version of PyTorch that wrote it.
  std::string torch_version;
  /// The dtype of the autocast in which it was exported; empty if none.
  std::string autocast;
  /// The inputs, in the order of Python's arguments.
  std::vector<Input> inputs;
  /// Names of the results, as ExportedOutputs has them.
  std::vector<std::string> outputs;
  /// Number of modules by class.
  std::map<std::string, std::size_t> classes;
  /// Number of calls by operator: "aten.linear.default".
  std::map<std::string, std::size_t> operators;
  /// Tied parameters count once.
  std::int64_t num_parameters = 0;
  /// False for an archive with the graph alone.
  bool has_weights = false;
  /// Whether it has a second graph for eval().
  bool has_evaluation = false;
  /// What prevents running it; empty for most programs.
  std::vector<std::string> unsupported;
};

}  // namespace accelerate
