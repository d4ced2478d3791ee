#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/safetensors.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Builds a tree of modules from dotted names, in any order, in time linear in
/// their length up to a logarithmic factor. Functions throw ConfigError for a
/// model beyond these limits.
class ModelTreeBuilder {
 public:
  /// Trees are walked recursively.
  static constexpr std::size_t kMostDepth = 128;
  static constexpr std::size_t kMostModules = 2'000'000;
  /// Elements of all tensors together: twelve bytes per element, as training
  /// needs, still fit into 63 bits.
  static constexpr std::uint64_t kMostElements = std::uint64_t{1} << 56U;

  /// `where` is the file, for messages.
  explicit ModelTreeBuilder(std::string where);

  void add_module(std::string_view path, std::string_view class_name);
  void add_parameter(std::string_view name, const safetensors::Shape& shape);
  /// Buffers are integers, such as position ids.
  void add_buffer(std::string_view name, const safetensors::Shape& shape);

  /// Returns the root with its whole tree. Leaves the builder empty.
  [[nodiscard]] ModuleNode finish();

 private:
  struct Entry {
    ModuleNode module;
    std::vector<std::size_t> children;
  };

  std::size_t at(std::string_view path);
  std::size_t child_of(std::size_t parent, std::string_view name);
  ModuleTensor tensor_of(
      std::string_view name,
      const char* dtype,
      const safetensors::Shape& shape);
  ModuleNode assemble(std::size_t entry);

  std::string where_;
  /// Modules, the root first. Addresses are stable, so that names can be keys.
  std::deque<Entry> entries_;
  std::map<std::pair<std::size_t, std::string_view>, std::size_t> by_name_;
  std::uint64_t num_elements_ = 0;
  std::uint64_t next_id_ = 0;
};

}  // namespace accelerate::detail
