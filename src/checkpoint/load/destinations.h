#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/contents.h"
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
/// missing tensors, unexpected tensors, different shapes, values that a tensor
/// cannot have (integers out of range, complex numbers, different values for
/// elements that share memory), and, strict or not, that no name matches at
/// all. `aliases` are further names, which need no tensor of their own. Reads
/// values only where they may not fit.
std::vector<std::string> mismatches(
    const std::string& section,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const Aliases& aliases,
    const MatchRules& rules);

/// Renames saved aliases to the first name of their tensor, which may have been
/// saved under any of its names. If it was under several, the last one in the
/// module's order is taken, as PyTorch does, unless `skip` matches it.
void take_other_names(
    StoredTensors& saved,
    const Aliases& aliases,
    const std::vector<std::string>& skip = {});

/// Copies values to a tensor of the same sizes, converted to its dtype and
/// device. Throws CheckpointError, with the name, if it cannot take them.
void set_values(
    const std::string& name,
    const at::Tensor& target,
    const at::Tensor& values);

/// Reads all destinations that were saved and are not skipped, directly into
/// their memory where dtype, device and strides allow it. Throws
/// CheckpointError, with the name, if a tensor cannot take its values.
void read_into(
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const MatchRules& rules = {});

}  // namespace accelerate::detail
