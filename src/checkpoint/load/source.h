#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <accelerate/state_dict.h>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A checkpoint of this library or of Python's Accelerate, open for reading.
struct CheckpointSource {
  std::filesystem::path directory;
  int num_processes = 1;
  /// The sections that exist: "model", "optimizer_1" and so on.
  std::map<std::string, StoredTensors> sections;
  /// The common state, as save_state() writes it: "optimizers", "schedulers",
  /// "objects", "loaders", "step", "scaler".
  StateDict state;
  /// The states "random", "loaders" and "strategies" that the rank of this
  /// number saved; unset if there was none.
  std::optional<StateDict> rank_state;
  /// True if Python's Accelerate wrote it: an optimizer's parameters are
  /// numbered, its groups' options are those of Python's class, and state that
  /// the format lacks may be missing.
  bool is_python = false;
};

/// Opens either kind. Throws CheckpointError naming what is wrong, Error if a
/// file cannot be read. With `verify`, throws DamagedCheckpoint if a file of
/// states has changed since it was written, and so does reading a tensor whose
/// file has. Nothing in the files is executed.
CheckpointSource
open_checkpoint(const std::filesystem::path& directory, int rank, bool verify);

/// Opens a directory written by save_state() of Python's Accelerate.
CheckpointSource open_python_checkpoint(
    const std::filesystem::path& directory,
    int rank);

}  // namespace accelerate::detail
