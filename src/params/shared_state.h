#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// A tensor of a strategy's state that is the same on all ranks that have it;
/// saved once, and loaded by any number of ranks.
struct SharedState {
  std::string name;
  at::Tensor tensor;
  /// The parameter to which it belongs: the first pipeline stage that has the
  /// parameter saves the state.
  std::string parameter;
};

using SharedStates = std::vector<SharedState>;
/// Saved states by name.
using SavedSharedStates = std::map<std::string, at::Tensor>;

}  // namespace accelerate::detail
