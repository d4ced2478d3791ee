#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A model as a tree of modules, without its values.
struct ModuleNode {
  struct Tensor {
    std::string name;
    std::uint64_t num_bytes = 0;
  };
  std::string name;  // in its parent
  std::string class_name;
  std::vector<Tensor> parameters;
  std::vector<Tensor> buffers;
  std::vector<ModuleNode> children;
};

/// Bytes of all parameters and buffers.
std::uint64_t total_bytes(const ModuleNode& module);

/// The largest layers: modules without children, those of the classes that must
/// not be split, and the root's own parameters.
struct LargestLayers {
  std::uint64_t num_bytes = 0;
  std::vector<std::string> names;
};
LargestLayers largest_layers(
    const ModuleNode& root,
    const std::vector<std::string>& no_split_classes);

/// What training with Adam takes, by Accelerate's rule of thumb; below 0:
/// nobody trains in this dtype.
struct TrainingEstimate {
  std::int64_t model = -1;
  std::int64_t gradients = -1;
  std::int64_t optimizer = -1;
  std::int64_t step = -1;
};

/// A line of the table of `estimate-memory`.
struct MemoryEstimate {
  std::string dtype;
  double largest_layer = 0;
  double total = 0;
  TrainingEstimate training;
};

/// For weights that were counted in float32. `dtype`: float32, float16, bfloat16,
/// int8 or int4. Throws ConfigError for another.
MemoryEstimate estimate_memory(
    const std::string& dtype,
    std::uint64_t largest_layer,
    std::uint64_t total);

/// The table as Accelerate prints it, in a frame.
std::string memory_table(
    const std::string& model,
    const std::vector<MemoryEstimate>& estimates);

}  // namespace accelerate::detail
