#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <accelerate/progress.h>

#include "base/files/file_system.h"

namespace accelerate::detail {

/// A progress bar for bytes that several threads read or write. The destructor
/// removes it.
class ByteProgress {
 public:
  /// `num_expected`: unset if it is not known. Bytes beyond it, such as file
  /// headers, are not shown. The fields of `options` that say what is counted
  /// are overridden.
  ByteProgress(
      std::optional<std::uint64_t> num_expected,
      ProgressOptions options);

  void add(std::uint64_t num_bytes);

 private:
  std::mutex mutex_;
  Progress bar_;
  std::uint64_t num_left_;
};

/// Wraps `disk` so that its files report the bytes written to `progress`.
/// Returns `disk` itself if `progress` is null.
std::shared_ptr<FileSystem> count_writes(
    std::shared_ptr<FileSystem> disk,
    std::shared_ptr<ByteProgress> progress);

/// The operating system's file system, with a bar for the bytes written to its
/// files.
std::shared_ptr<FileSystem> make_file_system_with_progress(
    const std::string& description,
    std::uint64_t num_expected);

}  // namespace accelerate::detail
