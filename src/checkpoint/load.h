#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <accelerate/state_dict.h>

#include "format/manifest.h"
#include "format/stored_tensors.h"
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
    const std::string& part,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const std::map<std::string, std::string>& aliases,
    const MatchRules& rules);

/// Of tensors with several names another than ours may have been kept: gives
/// it the name in `aliases`.
void take_other_names(
    StoredTensors& saved,
    const std::map<std::string, std::string>& aliases);

/// Reads all destinations that are saved and not skipped, whole tensors
/// straight into their memory where that is possible.
ACCELERATE_API void read_into(
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const MatchRules& rules = {});

/// A complete checkpoint, open for reading.
class ACCELERATE_API Checkpoint {
 public:
  /// Throws CheckpointError naming what is wrong.
  explicit Checkpoint(std::filesystem::path folder);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// Empty for a part that is not there.
  [[nodiscard]] StoredTensors tensors(const std::string& part) const;
  /// The state in a file; `tensor_of` gives tensors that are not in it.
  [[nodiscard]] StateDict state(const std::string& file) const;
  /// Hashes all files. Throws CheckpointError naming those that changed.
  void verify() const;

 private:
  std::filesystem::path folder_;
  Manifest manifest_;
};

}  // namespace accelerate::detail
