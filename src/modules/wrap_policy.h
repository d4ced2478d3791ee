#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Which modules of a model are units: gathered together, recomputed together,
/// or kept on one device. Parameters that no unit holds belong to the root.
struct WrapPolicy {
  enum class Kind {
    /// The elements of the outermost Sequentials and ModuleLists.
    containers,
    /// No module.
    none,
    /// The modules of the named classes.
    classes,
    /// The modules with at least `min_num_params` parameters that their
    /// children leave, as in PyTorch's recursive wrapping; 0 chooses none.
    remainder,
    /// The modules with more than `min_num_params` parameters, children
    /// included, as in Accelerate's wrapping for FSDP2.
    size,
    /// The outermost modules whose class or name says that they are attention:
    /// "Attention" or "attn" in it, in any case.
    attention,
  };
  Kind kind = Kind::containers;
  std::vector<std::string> class_names = {};
  std::int64_t min_num_params = 0;
  /// Modules of these classes are units as well, and nothing in them is one.
  std::vector<std::string> leaf_class_names = {};

  bool operator==(const WrapPolicy&) const = default;
};

/// Dotted names of the chosen modules, the root never among them; children
/// before parents. Throws ConfigError naming classes that no module has.
std::vector<std::string> wrapped_modules(
    const ModuleNode& root,
    const WrapPolicy& policy);

}  // namespace accelerate::detail
