#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace accelerate::detail {

using Bytes = std::span<const std::byte>;

/// A file being written. Every function throws Error naming the path and the
/// system's reason. The destructor closes it.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  virtual ~OutputFile() = default;

  /// Writes the pieces one after another from `offset` on. Several threads may
  /// write at different offsets.
  virtual void write_at(
      std::uint64_t offset,
      std::span<const Bytes> pieces) = 0;
  /// Makes everything written durable and closes the file.
  virtual void finish() = 0;

  void write_at(std::uint64_t offset, Bytes bytes) {
    write_at(offset, std::span<const Bytes>(&bytes, 1));
  }
};

/// Interface to the disk operations of a save, so that tests can record them
/// and make any of them fail. Functions throw Error naming the path and the
/// system's reason. Thread-safe.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// Creates a file that must not exist yet.
  virtual std::unique_ptr<OutputFile> create(
      const std::filesystem::path& path) = 0;
  /// Creates a directory that must not exist yet, in one that does.
  virtual void create_directory(const std::filesystem::path& path) = 0;
  /// Replaces an existing file or empty directory at the new name.
  virtual void rename(
      const std::filesystem::path& from,
      const std::filesystem::path& to) = 0;
  /// Renames `from` to a name that is not in use. Returns false, having done
  /// nothing, if `to` exists.
  virtual bool rename_to_unused(
      const std::filesystem::path& from,
      const std::filesystem::path& to) = 0;
  /// Exchanges two names in one step. Returns false, having done nothing, where
  /// the file system does not support it.
  virtual bool exchange(
      const std::filesystem::path& one,
      const std::filesystem::path& other) = 0;
  /// Creates a hard link.
  virtual void link(
      const std::filesystem::path& from,
      const std::filesystem::path& to) = 0;
  /// Makes durable a file that OutputFile did not write.
  virtual void sync_file(const std::filesystem::path& path) = 0;
  virtual void remove_file(const std::filesystem::path& path) = 0;
  /// Removes an empty directory.
  virtual void remove_directory(const std::filesystem::path& path) = 0;
  /// Makes created, renamed and removed entries of `directory` durable.
  virtual void sync_directory(const std::filesystem::path& directory) = 0;
};

/// The operating system's file system.
std::shared_ptr<FileSystem> make_file_system();

/// A lock on a directory, held until this object is destroyed or the process
/// ends. Other processes, and other objects in this one, cannot take it
/// meanwhile.
class DirectoryLock {
 public:
  /// Does not hold the lock if it is already taken.
  explicit DirectoryLock(const std::filesystem::path& directory);
  /// Waits until the lock is free. Throws Error if the directory cannot be
  /// opened.
  static DirectoryLock wait(const std::filesystem::path& directory);
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();
  [[nodiscard]] bool is_held() const { return file_ >= 0; }

 private:
  DirectoryLock() = default;

  int file_ = -1;
};

}  // namespace accelerate::detail
