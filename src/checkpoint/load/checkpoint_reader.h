#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <accelerate/state_dict.h>

#include "format/checkpoint/manifest.h"
#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A complete checkpoint, open for reading.
class CheckpointReader {
 public:
  /// With `verify`, what is read is checked against its checksums. Throws
  /// CheckpointError naming what is wrong.
  explicit CheckpointReader(
      std::filesystem::path directory,
      bool verify = false);

  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_;
  }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// The tensors of a section; empty if the checkpoint does not have it.
  [[nodiscard]] StoredTensors tensors(const std::string& section) const;
  /// The state in a file of the checkpoint.
  [[nodiscard]] StateDict state(const std::string& file) const;
  /// Hashes all files. Throws DamagedCheckpoint naming those that changed.
  void verify() const;
  /// Hashes these files.
  void verify(const std::vector<std::string>& files) const;
  /// The files that hooks added, which neither tensors() nor state() reads.
  [[nodiscard]] std::vector<std::string> files_of_hooks() const;

 private:
  std::filesystem::path directory_;
  Manifest manifest_;
  bool verifies_ = false;
};

}  // namespace accelerate::detail
