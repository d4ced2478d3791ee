#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <accelerate/progress.h>

#include "base/files/file_system.h"

namespace accelerate::detail {

/// A progress bar of bytes that several threads read or write. It goes when
/// this does.
class ByteProgress {
 public:
  /// `num_expected`: unset if it is not known. What comes beyond it, such as
  /// headers of files, is not shown. Of `options`, those that say what
  /// is counted are replaced.
  ByteProgress(
      std::optional<std::uint64_t> num_expected,
      ProgressOptions options);

  void add(std::uint64_t num_bytes);

 private:
  std::mutex mutex_;
  Progress bar_;
  std::uint64_t num_left_;
};

/// `disk`, whose files tell `progress` what they get. Without `progress`, `disk`
/// itself.
std::shared_ptr<FileSystem> count_writes(
    std::shared_ptr<FileSystem> disk,
    std::shared_ptr<ByteProgress> progress);

/// The operating system's file system with a bar of the bytes that its files
/// get.
std::shared_ptr<FileSystem> make_file_system_with_progress(
    const std::string& description,
    std::uint64_t num_expected);

}  // namespace accelerate::detail
