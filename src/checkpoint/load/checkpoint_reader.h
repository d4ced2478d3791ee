#pragma once

#include <filesystem>
#include <string>

#include <accelerate/export.h>
#include <accelerate/state_dict.h>

#include "format/checkpoint/manifest.h"
#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A complete checkpoint, open for reading.
class CheckpointReader {
 public:
  /// Throws CheckpointError naming what is wrong.
  explicit CheckpointReader(std::filesystem::path directory);

  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_;
  }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// The tensors of a section; empty if the checkpoint does not have it.
  [[nodiscard]] StoredTensors tensors(const std::string& section) const;
  /// The state in a file of the checkpoint.
  [[nodiscard]] StateDict state(const std::string& file) const;
  /// Hashes all files. Throws CheckpointError naming those that changed.
  void verify() const;

 private:
  std::filesystem::path directory_;
  Manifest manifest_;
};

}  // namespace accelerate::detail
