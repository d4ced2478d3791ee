#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// A module, parameter or buffer in a SizedTree.
struct SizedNode {
  enum class Kind { module, parameter, buffer };
  Kind kind = Kind::module;
  int parent = -1;
  /// One past the last node below this one.
  int end = 0;
  std::string_view name = {};        ///< within its parent
  std::string_view class_name = {};  ///< of a module
  /// Bytes of everything below; a tied tensor counts where it comes first.
  double num_bytes = 0;
  double num_buffer_bytes = 0;
  /// Bytes of everything below, with tied tensors wherever they occur, and the
  /// number of elements of its parameters.
  double num_bytes_with_ties = 0;
  double num_elements = 0;
  /// Bytes of the largest layer inside; see SizedTree::is_layer.
  double largest_layer = 0;
  /// Whether it contains, or is, a tensor that counts.
  bool has_tensors = false;
  bool is_no_split = false;
  bool has_children = false;  ///< modules
};

/// The layers of one size.
struct LargestLayer {
  double num_bytes = 0;
  std::vector<int> nodes;
};

/// A module tree as an array with sizes: a module is followed by its
/// parameters, buffers and children, each with everything below it. Node 0 is
/// the root. Holds views of the names in the ModuleNode from which it was
/// built, which must outlive it.
class SizedTree {
 public:
  /// Throws ConfigError for an unknown dtype.
  SizedTree(
      const ModuleNode& root,
      const ModuleSizesOptions& sizes,
      const std::vector<std::string>& no_split_module_classes = {});

  [[nodiscard]] const SizedNode& operator[](int node) const {
    return nodes_[static_cast<std::size_t>(node)];
  }
  [[nodiscard]] int size() const { return static_cast<int>(nodes_.size()); }
  [[nodiscard]] std::string name_of(int node) const;
  [[nodiscard]] bool is_module(int node) const {
    return (*this)[node].kind == SizedNode::Kind::module;
  }
  [[nodiscard]] bool is_inside(int node, int ancestor) const {
    return ancestor <= node && node < (*this)[ancestor].end;
  }
  /// Whether a module is moved to a device as a unit.
  [[nodiscard]] bool is_layer(int node) const {
    return !(*this)[node].has_children || (*this)[node].is_no_split;
  }
  /// Whether it may be replaced by parts().
  [[nodiscard]] bool is_splittable(int node) const {
    return is_module(node) && !is_layer(node);
  }
  /// A module's parameters and children, without its buffers.
  [[nodiscard]] std::vector<int> parts(int node) const;
  [[nodiscard]] std::vector<int> buffers(int node) const;

  /// Appends the layers inside `node` that have `num_bytes`.
  void add_layers(int node, double num_bytes, std::vector<int>& layers) const;
  /// The largest layers among these nodes, where tensors count as layers.
  [[nodiscard]] LargestLayer largest_layer(const std::vector<int>& nodes) const;
  /// What a map has to place: the root's parameters, children and buffers.
  [[nodiscard]] std::vector<int> items() const;

  /// Groups of parameters that are one tensor; members sorted by name, groups
  /// by the position of their first members in the tree.
  [[nodiscard]] const std::vector<std::vector<int>>& ties() const {
    return ties_;
  }
  /// Parameters outside `node` that are tied to one inside it.
  [[nodiscard]] std::vector<int> tied_outside(int node) const;

 private:
  class Builder;
  void find_ties(const std::vector<std::uint64_t>& ids);

  std::vector<SizedNode> nodes_;
  std::vector<std::vector<int>> ties_;
  // The tied parameters in tree order, each with its group.
  std::vector<std::pair<int, int>> tied_nodes_;
};

/// Bytes of every module and tensor by dotted name; "" is the whole model. A
/// tied tensor counts where it comes first, and has no entry elsewhere.
using ModuleSizes = std::map<std::string, double>;

/// Accelerate's compute_module_sizes on a module tree.
ModuleSizes module_sizes(
    const ModuleNode& root,
    const ModuleSizesOptions& options);

/// The entry "" of these sizes; 0 if there are no tensors.
double total_module_size(
    const ModuleNode& root,
    const ModuleSizesOptions& options);

/// The largest layers by name: modules without children, and modules of the
/// given classes.
struct LargestLayerNames {
  double num_bytes = 0;
  std::vector<std::string> names;
};
/// Among the root's children and its own tensors.
LargestLayerNames largest_layer(
    const ModuleNode& root,
    const ModuleSizesOptions& sizes,
    const std::vector<std::string>& no_split_module_classes);

}  // namespace accelerate::detail
