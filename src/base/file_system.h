#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

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
  /// write at different places.
  virtual void write_at(
      std::uint64_t offset,
      std::span<const Bytes> pieces) = 0;
  /// Makes what was written durable and closes the file.
  virtual void finish() = 0;

  void write_at(std::uint64_t offset, Bytes bytes) {
    write_at(offset, std::span<const Bytes>(&bytes, 1));
  }
};

/// What a save does to a disk, so that tests can record it, and let it fail at
/// any call. Functions throw Error naming the path and the system's reason.
/// Safe for several threads.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// A file that does not exist yet.
  virtual std::unique_ptr<OutputFile> create(
      const std::filesystem::path& path) = 0;
  /// One that does not exist yet, in a folder that does.
  virtual void create_folder(const std::filesystem::path& path) = 0;
  /// Replaces a file, or an empty folder, that is there.
  virtual void rename(
      const std::filesystem::path& from,
      const std::filesystem::path& to) = 0;
  /// Swaps two names in one step. False, and nothing done, where the file
  /// system cannot.
  virtual bool exchange(
      const std::filesystem::path& one,
      const std::filesystem::path& other) = 0;
  /// A second name of a file.
  virtual void link(
      const std::filesystem::path& from,
      const std::filesystem::path& to) = 0;
  /// Makes a file that somebody else wrote durable.
  virtual void sync_file(const std::filesystem::path& path) = 0;
  virtual void remove_file(const std::filesystem::path& path) = 0;
  /// An empty one.
  virtual void remove_folder(const std::filesystem::path& path) = 0;
  /// Makes what happened to names inside `folder` durable.
  virtual void sync_folder(const std::filesystem::path& folder) = 0;
};

/// The system's own.
std::shared_ptr<FileSystem> make_file_system();

/// A lock on a folder that ends with the process, or with this object. Another
/// process, or another object of this one, cannot take it meanwhile.
class FolderLock {
 public:
  /// Not taken if somebody else has it.
  explicit FolderLock(const std::filesystem::path& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();
  [[nodiscard]] bool is_held() const { return file_ >= 0; }

 private:
  int file_ = -1;
};

}  // namespace accelerate::detail
