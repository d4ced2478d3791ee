#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "format/manifest.h"

namespace accelerate::detail {

/// A checkpoint that is being written, in a hidden folder beside its name. A
/// crash at any moment leaves whatever had the name before, or the new one,
/// whole. One object, on one rank; others may write files into folder().
///
/// Order of the steps: data files are written and synced; the manifest is
/// written and synced; the folder is synced; it gets its name in one step; the
/// folder around it is synced.
class PendingCheckpoint {
 public:
  /// Creates missing folders around it, and sweeps what dead saves left there.
  /// Throws Error if it cannot be written there, CheckpointError if something
  /// of that name is in the way that a save may not replace.
  PendingCheckpoint(
      std::shared_ptr<FileSystem> disk,
      const std::filesystem::path& target);
  PendingCheckpoint(const PendingCheckpoint&) = delete;
  PendingCheckpoint& operator=(const PendingCheckpoint&) = delete;
  /// Removes what was not committed.
  ~PendingCheckpoint();

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const std::filesystem::path& target() const { return target_; }
  /// Files that the manifest lists are durable. Returns what could not be
  /// tidied up after the checkpoint was safe: no more than warnings. Throws
  /// Error if it is not; then the old state stands.
  std::vector<std::string> commit(const Manifest& manifest);

 private:
  std::shared_ptr<FileSystem> disk_;
  std::filesystem::path target_;
  std::filesystem::path folder_;
  std::optional<FolderLock> lock_;
  bool is_committed_ = false;
};

/// Makes files that somebody else put into `folder` durable, and records them
/// in `manifest`, which knows the others. Throws Error.
void adopt_files(
    FileSystem& disk,
    const std::filesystem::path& folder,
    Manifest& manifest);

/// Deletes a checkpoint so that a crash on the way leaves it whole or gone.
/// Throws Error.
void remove_checkpoint(FileSystem& disk, const std::filesystem::path& folder);

/// Gives checkpoints back the names that a save took from them, where it died
/// before the new ones had them.
void restore_put_aside(FileSystem& disk, const std::filesystem::path& parent);

/// The same, and removes what dead saves and deletions left in `parent`. What
/// live ones use stays. Returns complaints about what could not be removed.
std::vector<std::string> sweep(
    FileSystem& disk,
    const std::filesystem::path& parent);

/// Creates `folder` and what is missing above it, durably.
void create_folders(FileSystem& disk, const std::filesystem::path& folder);

}  // namespace accelerate::detail
