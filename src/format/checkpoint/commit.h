#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file_system.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

/// A checkpoint being written, in a hidden directory beside its final name. A
/// crash at any moment leaves either the previous checkpoint under that name or
/// the new one, complete. Only one rank has this object; others may write files
/// into directory().
///
/// Order of the steps: data files are written and synced; the manifest is
/// written and synced; the directory is synced; it is renamed in one step; the
/// parent directory is synced. See docs/concepts/checkpoint_commit.md.
class PendingCheckpoint {
 public:
  /// Creates missing parent directories, and removes what saves of dead
  /// processes left there. Throws Error if they cannot be written to,
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
  /// The files listed in the manifest must be durable. Returns warnings about
  /// what could not be cleaned up once the checkpoint was safe. Throws Error if
  /// it is not safe; the previous state then stands. Throws CheckpointError if
  /// another program has taken the name since the save began; that program's
  /// checkpoint then stands.
  std::vector<std::string> commit(const Manifest& manifest);
  /// Commits without a manifest, for files in another program's layout, which
  /// must be durable.
  std::vector<std::string> commit();

 private:
  /// Renames directory() to its final name; returns where the checkpoint that
  /// had that name is now.
  std::optional<std::filesystem::path> take_name(
      const std::optional<std::string>& replaceable);

  std::shared_ptr<FileSystem> disk_;
  std::filesystem::path target_;
  std::filesystem::path directory_;
  /// The manifest found under the name when the save began; empty for a
  /// directory without a manifest, nothing if the name was unused.
  std::optional<std::string> replaceable_;
  std::optional<DirectoryLock> lock_;
  bool is_committed_ = false;
};

/// Makes durable the files that other code put into `directory`, and adds them
/// to `manifest`, which lists all others. Throws Error.
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
/// before the new checkpoints had those names.
void restore_put_aside(FileSystem& disk, const std::filesystem::path& parent);

/// Calls restore_put_aside(), and removes what dead saves and deletions left in
/// `parent`. Files of live ones stay. Returns complaints about what could not
/// be removed.
std::vector<std::string> sweep(
    FileSystem& disk,
    const std::filesystem::path& parent);

/// Creates `directory` and missing directories above it, durably.
void create_directories(
    FileSystem& disk,
    const std::filesystem::path& directory);

}  // namespace accelerate::detail
