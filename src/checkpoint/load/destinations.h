#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

#include "format/tensors/stored_tensors.h"
#include "params/layout.h"

namespace accelerate::detail {

/// Where a saved tensor, or this rank's box of it, goes.
struct Destination {
  std::string name;
  /// Written to; converted where its dtype is another than the saved one.
  at::Tensor tensor;
  Layout layout;
};

/// What must not be missing or left over; patterns of names with * and ?.
struct MatchRules {
  bool strict = true;
  /// Left as they are, whether saved or not.
  std::vector<std::string> skip = {};
  /// May be missing in the checkpoint.
  std::vector<std::string> allow_missing = {};
};

bool matches_any(
    const std::vector<std::string>& patterns,
    const std::string& name);

/// Why `saved` does not fit, each with `part` in front: missing, left over, of
/// another shape. `aliases`: other names that need no tensor of their own.
ACCELERATE_API std::vector<std::string> mismatches(
    const std::string& section,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const std::map<std::string, std::string>& aliases,
    const MatchRules& rules);

/// A tensor with several names may have been saved under another of them:
/// renames it to the name in `aliases`.
void take_other_names(
    StoredTensors& saved,
    const std::map<std::string, std::string>& aliases);

/// Reads all destinations that are saved and not skipped, whole tensors
/// straight into their memory where that is possible.
ACCELERATE_API void read_into(
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const MatchRules& rules = {});

}  // namespace accelerate::detail
