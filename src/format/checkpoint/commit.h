#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file_system.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

/// A checkpoint that is being written, in a hidden directory beside its name. A
/// crash at any moment leaves either the previous checkpoint under the name, or
/// the new one, complete. One object, on one rank; others may write files into
/// directory().
///
/// Order of the steps: data files are written and synced; the manifest is
/// written and synced; the directory is synced; it gets its name in one step;
/// the parent directory is synced. See docs/concepts/checkpoint_commit.md.
class PendingCheckpoint {
 public:
  /// Creates missing directories around it, and removes what saves of dead
  /// processes left there. Throws Error if it cannot be written there,
  /// CheckpointError if the name is taken by something that a save may not
  /// replace.
  PendingCheckpoint(
      std::shared_ptr<FileSystem> disk,
      const std::filesystem::path& target);
  PendingCheckpoint(const PendingCheckpoint&) = delete;
  PendingCheckpoint& operator=(const PendingCheckpoint&) = delete;
  /// Removes everything if it was not committed.
  ~PendingCheckpoint();

  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_;
  }
  [[nodiscard]] const std::filesystem::path& target() const { return target_; }
  /// Requires that the files that the manifest lists are durable. Returns
  /// warnings about what could not be cleaned up once the checkpoint was safe.
  /// Throws Error if it is not safe; then the previous state stands.
  /// CheckpointError if another program has taken the name since the save
  /// began; its checkpoint stands.
  std::vector<std::string> commit(const Manifest& manifest);
  /// The same without a manifest, for the files of another program's layout,
  /// which must be durable.
  std::vector<std::string> commit();

 private:
  /// Gives directory() its name, and returns where the checkpoint that had it
  /// is now.
  std::optional<std::filesystem::path> take_name(
      const std::optional<std::string>& replaceable);

  std::shared_ptr<FileSystem> disk_;
  std::filesystem::path target_;
  std::filesystem::path directory_;
  /// The manifest of what had the name when the save began; empty for a
  /// directory without one, nothing if nothing had the name.
  std::optional<std::string> replaceable_;
  std::optional<DirectoryLock> lock_;
  bool is_committed_ = false;
};

/// Makes files that other code put into `directory` durable, and adds them to
/// `manifest`, which lists all others. Throws Error.
void adopt_files(
    FileSystem& disk,
    const std::filesystem::path& directory,
    Manifest& manifest);

/// Deletes a checkpoint so that a crash in between leaves it complete or gone.
/// Throws Error.
void remove_checkpoint(
    FileSystem& disk,
    const std::filesystem::path& directory);

/// Gives checkpoints back the names that a save took from them, if it died
/// before the new ones had them.
void restore_put_aside(FileSystem& disk, const std::filesystem::path& parent);

/// Does the same, and removes what dead saves and deletions left in `parent`.
/// Files of live ones stay. Returns complaints about what could not be removed.
std::vector<std::string> sweep(
    FileSystem& disk,
    const std::filesystem::path& parent);

/// Creates `directory` and missing directories above it, durably.
void create_directories(
    FileSystem& disk,
    const std::filesystem::path& directory);

}  // namespace accelerate::detail
