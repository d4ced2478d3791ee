#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

namespace accelerate {

namespace detail {
class DiskTensors;
class DiskKeeper;
}  // namespace detail

struct SavedTensorFileOptions {
  /// A directory on a disk, where a file without a name is made.
  std::filesystem::path directory = {};
  /// Memory through which tensors are written and read; a larger tensor needs
  /// its own size. With room for several, they are read before backward needs
  /// them.
  std::uint64_t buffer_bytes = std::uint64_t{256} << 20U;
  /// Smaller tensors stay in memory. Lower: less memory, more small reads and
  /// writes.
  std::int64_t min_bytes = 1 << 20;
  /// Allow a directory in memory (tmpfs, ramfs), which saves none.
  bool directory_in_memory = false;
};

/// A file for what operators save for backward (SaveOnDisk). The system frees
/// it when the process ends, however it ends. Make it once and use it in every
/// step, in one forward at a time. A handle: copies refer to the same file,
/// which also lives as long as a graph needs it.
class ACCELERATE_API SavedTensorFile {
 public:
  /// Throws ConfigError unless the directory exists and is on a disk, and Error
  /// if no file can be made there.
  explicit SavedTensorFile(const SavedTensorFileOptions& options);

  /// Bytes reserved on the disk, which grow to what one step saves.
  [[nodiscard]] std::uint64_t num_bytes() const;

 private:
  friend class SaveOnDisk;

  detail::KeptPtr<detail::DiskTensors> tensors_;
  std::int64_t min_bytes_;
};

/// While it lives, what operators on this thread save for backward is written
/// to the file, and read again, ahead of its use, when backward needs it.
/// Parameters, tensors that lie elsewhere already, and small ones stay where
/// they are. What several operators save is written once. Gradients are those
/// without it, in every bit. Must be destroyed on the thread that made it,
/// innermost first. Backward throws Error if the disk is full or fails.
class ACCELERATE_API SaveOnDisk {
 public:
  explicit SaveOnDisk(const SavedTensorFile& file);
  ~SaveOnDisk();
  SaveOnDisk(const SaveOnDisk&) = delete;
  SaveOnDisk& operator=(const SaveOnDisk&) = delete;

 private:
  detail::OwnedPtr<detail::DiskKeeper> keeper_;
};

}  // namespace accelerate
