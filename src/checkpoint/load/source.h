#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/state_dict.h>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A checkpoint, open for reading, whoever wrote it.
struct CheckpointSource {
  std::filesystem::path directory;
  int num_processes = 1;
  /// "model", "optimizer_1" and so on; those that are there.
  std::map<std::string, StoredTensors> sections;
  /// As save_state() writes it: "optimizers", "schedulers", "objects",
  /// "loaders", "step", "scaler".
  StateDict state;
  /// "random", "loaders" and "strategies" of a rank, if there is such a rank.
  std::optional<StateDict> rank_state;
  /// Written by Python's Accelerate: an optimizer's parameters are called by
  /// their number, its groups' options are those of Python's class, and what
  /// the format does not hold may be missing.
  bool is_python = false;
};

/// Throws CheckpointError naming what is wrong, also if `verify` and anything
/// changed since it was written; Error if a file cannot be read. Nothing in the
/// files is executed.
ACCELERATE_API CheckpointSource
open_checkpoint(const std::filesystem::path& directory, int rank, bool verify);

/// A directory that Python's Accelerate wrote by save_state().
CheckpointSource open_python_checkpoint(
    const std::filesystem::path& directory,
    int rank);

}  // namespace accelerate::detail
