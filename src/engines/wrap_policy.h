#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <accelerate/fully_sharded.h>

namespace accelerate::detail {

/// A module as wrapping policies see it.
struct WrapNode {
  std::string name;        ///< dotted, from the root; the root has none
  std::string class_name;  ///< may be qualified, and end in Impl
  /// Its own parameters, without its children's: which, and how many elements.
  /// A parameter that several modules share is the same number in all.
  std::map<std::uint64_t, std::int64_t> parameters;
  std::vector<WrapNode> children;
};

/// Whether a class is meant by a name: "Block" means Block, BlockImpl and
/// models::BlockImpl.
bool is_class(const WrapNode& module, const std::string& name);

/// Names of the modules that become units, besides the root, children before
/// parents: as PyTorch's recursive wrapping (version 1) and Accelerate's
/// bottom-up pass (version 2) choose them for the options' policy. Options are
/// resolved. Throws ConfigError naming classes that no module has.
std::vector<std::string> wrapped_modules(
    const WrapNode& root,
    const FullyShardedDataParallelOptions& options);

}  // namespace accelerate::detail
