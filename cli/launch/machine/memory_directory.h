#pragma once

#include <filesystem>

namespace accelerate::cli {

/// The directory in memory in which this launcher's ranks may keep states; its
/// name contains this process's id. Empty if the machine has none.
std::filesystem::path memory_directory_of_launcher();

/// On destruction, removes the directory of states in memory, which ranks may
/// have created; on construction, those of launchers that were killed.
class MemoryDirectory {
 public:
  /// Does nothing with an empty path.
  explicit MemoryDirectory(std::filesystem::path path);
  MemoryDirectory(const MemoryDirectory&) = delete;
  MemoryDirectory& operator=(const MemoryDirectory&) = delete;
  ~MemoryDirectory();

 private:
  std::filesystem::path path_;
};

}  // namespace accelerate::cli
