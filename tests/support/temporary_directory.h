#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace accelerate::testing {

/// A fresh directory, removed with everything in it.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(
      const std::filesystem::path& base =
          std::filesystem::temp_directory_path()) {
    std::string name = (base / "accelerate-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("cannot create " + name);
    }
    path_ = name;
  }
  /// A directory whose files are in memory, if the system has one; for tests
  /// with thousands of files.
  static std::filesystem::path memory() {
    return std::filesystem::is_directory("/dev/shm")
        ? "/dev/shm"
        : std::filesystem::temp_directory_path();
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace accelerate::testing
