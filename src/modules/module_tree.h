#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// A parameter or buffer, without its values.
struct ModuleTensor {
  std::string name;   ///< within its module
  std::string dtype;  ///< PyTorch's name: "float32"
  std::int64_t num_elements = 0;
  std::uint64_t num_bytes = 0;
  /// A number that is equal in all modules that share the tensor.
  std::uint64_t id = 0;
  std::vector<std::int64_t> shape = {};
  /// False for a buffer that is not part of the state dict.
  bool is_persistent = true;
};

/// A model as a tree of modules, from a file or from a program's module.
struct ModuleNode {
  std::string name;        ///< within its parent; empty for the root
  std::string class_name;  ///< may be qualified, and end in Impl
  /// The module's own tensors, without those of its children.
  std::vector<ModuleTensor> parameters;
  std::vector<ModuleTensor> buffers;
  std::vector<ModuleNode> children;
};

/// The name of a child within the root: "parent.name".
std::string dotted_name(std::string_view parent, std::string_view name);

/// Bytes of all parameters and buffers.
std::uint64_t total_bytes(const ModuleNode& module);

/// Number of elements of all parameters; shared ones count once.
std::int64_t num_parameters(const ModuleNode& module);

/// Names of the parameters that are one tensor: each group is sorted, and
/// groups are in the order of their first members in the tree. Empty without
/// ties.
std::vector<std::vector<std::string>> tied_parameters(const ModuleNode& root);

/// Whether `name` names the module's class: "Block" names Block, BlockImpl and
/// models::BlockImpl.
bool is_class(const ModuleNode& module, std::string_view name);
bool is_one_of(
    const ModuleNode& module,
    const std::vector<std::string>& class_names);

}  // namespace accelerate::detail
