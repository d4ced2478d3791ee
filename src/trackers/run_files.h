#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// `directory / name`. Throws Error if that is not below the directory: for
/// names that become files.
std::filesystem::path path_below(
    const std::filesystem::path& directory,
    std::string_view name);

/// Writes `contents`, which need not survive the machine, over what is there.
/// Creates missing directories. Throws Error naming the path.
void write_run_file(
    const std::filesystem::path& path,
    std::string_view contents);

/// Copies one file over what is at `target`. Creates missing directories.
/// Throws Error naming the paths.
void copy_run_file(
    const std::filesystem::path& file,
    const std::filesystem::path& target);

/// Copies a file, or a directory with all in it, into `directory`, which is
/// created if it is missing. Throws Error naming the paths.
void copy_into(
    const std::filesystem::path& source,
    const std::filesystem::path& directory);

/// Files that grow by lines. Lines wait in memory until flush(), so that a file
/// is opened once for many of them.
class GrowingFiles {
 public:
  void append(const std::filesystem::path& path, std::string_view text);
  /// Writes what waits. Creates missing directories. If it throws Error, what
  /// was not written waits on.
  void flush();
  /// Whether text for this file waits.
  [[nodiscard]] bool has(const std::filesystem::path& path) const {
    return waiting_.contains(path);
  }

 private:
  std::map<std::filesystem::path, std::string> waiting_;
  std::size_t num_bytes_ = 0;
};

}  // namespace accelerate::detail
