#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <initializer_list>
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
/// directories. Throws Error naming the path, also if it is not a regular file,
/// such as a link.
void write_run_file(
    const std::filesystem::path& path,
    std::string_view contents);

/// Copies one file over what is at `target`. Creates missing directories.
/// Throws Error naming the paths.
void copy_run_file(
    const std::filesystem::path& file,
    const std::filesystem::path& target);

/// Copies a file, or a directory with everything in it, into `directory`, which
/// is created if it is missing. Links in the source are followed; links at the
/// destinations of files and directories are rejected. Throws Error naming the
/// paths.
void copy_into(
    const std::filesystem::path& source,
    const std::filesystem::path& directory);

/// Calls all functions, and then throws the first Error, if any.
void attempt_all(std::initializer_list<std::function<void()>> calls);

/// Files that grow line by line. Lines are held in memory until flush(), so
/// that a file is opened once for many of them.
class GrowingFiles {
 public:
  /// Adds whole lines. If many are pending, tries to write them.
  void append(const std::filesystem::path& path, std::string_view text);
  /// Writes the pending lines of all files. Creates missing directories. Throws
  /// the Error of the first file that cannot be written at the end; the first
  /// MiB of each file's unwritten text remains pending.
  void flush();
  /// Whether text for this file is pending.
  [[nodiscard]] bool has(const std::filesystem::path& path) const {
    return waiting_.contains(path);
  }

 private:
  std::map<std::filesystem::path, std::string> waiting_;
  std::size_t num_new_bytes_ = 0;  // since the last flush()
};

}  // namespace accelerate::detail
