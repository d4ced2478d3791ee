#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

#include "format/tensors/stored_tensors.h"
#include "params/layout.h"

namespace accelerate::detail {

/// The destination of a saved tensor, or of this rank's shard of it.
struct Destination {
  std::string name;
  /// Receives the data, converted to its dtype.
  at::Tensor tensor;
  Layout layout;
};

/// Which tensors may be missing or unexpected; names are patterns with * and ?.
struct MatchRules {
  bool strict = true;
  /// Tensors that are left unchanged, whether saved or not.
  std::vector<std::string> skip = {};
  /// Tensors that may be missing in the checkpoint.
  std::vector<std::string> allow_missing = {};
};

bool matches_any(
    const std::vector<std::string>& patterns,
    const std::string& name);

/// Returns why `saved` does not fit, each complaint prefixed with `section`:
/// missing tensors, unexpected tensors, different shapes. `aliases` are further
/// names, which need no tensor of their own.
std::vector<std::string> mismatches(
    const std::string& section,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const std::map<std::string, std::string>& aliases,
    const MatchRules& rules);

/// Renames saved aliases to the names that `aliases` maps them to: a tensor
/// with several names may have been saved under any of them.
void take_other_names(
    StoredTensors& saved,
    const std::map<std::string, std::string>& aliases);

/// Reads all destinations that were saved and are not skipped, directly into
/// their memory where dtype, device and strides allow it.
void read_into(
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const MatchRules& rules = {});

}  // namespace accelerate::detail
