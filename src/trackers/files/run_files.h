#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// `directory / name`, for names that become files. Throws Error if that is not
/// below the directory.
std::filesystem::path path_below(
    const std::filesystem::path& directory,
    std::string_view name);

/// Writes `contents` over what is there, without syncing. Creates missing
/// directories. Throws Error naming the path, also if there is something else
/// than a regular file, such as a link.
void write_run_file(
    const std::filesystem::path& path,
    std::string_view contents);

/// Copies one file over what is at `target`. Creates missing directories.
/// Throws Error naming the paths.
void copy_run_file(
    const std::filesystem::path& file,
    const std::filesystem::path& target);

/// Copies a file, or a directory with everything in it, into `directory`, which
/// is created if it is missing. Throws Error naming the paths.
void copy_into(
    const std::filesystem::path& source,
    const std::filesystem::path& directory);

/// Files that grow line by line. Lines are held in memory until flush(), so
/// that a file is opened once for many of them.
class GrowingFiles {
 public:
  void append(const std::filesystem::path& path, std::string_view text);
  /// Writes the pending lines. Creates missing directories. If it throws Error,
  /// what was not written remains pending.
  void flush();
  /// Whether text for this file is pending.
  [[nodiscard]] bool has(const std::filesystem::path& path) const {
    return waiting_.contains(path);
  }

 private:
  std::map<std::filesystem::path, std::string> waiting_;
  std::size_t num_bytes_ = 0;
};

}  // namespace accelerate::detail
