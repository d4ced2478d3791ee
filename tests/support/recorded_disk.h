#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file_system.h"

namespace accelerate::testing {

/// The system's file system without syncs, for tests that do not simulate a
/// power failure.
std::shared_ptr<detail::FileSystem> make_unsynced_disk();

/// A file or directory of a disk. Nodes are numbered, and directories map names
/// to numbers.
struct DiskNode {
  bool is_directory = false;
  std::string bytes;
  std::map<std::string, int> entries;
};

/// An operation on a disk, in terms of nodes.
struct DiskOperation {
  enum class Kind { write, truncate, sync, names } kind = Kind::names;
  /// The file or directory that is written or synced, or the directory of the
  /// names.
  int node = 0;
  /// Where the bytes are written, or the size of a truncated file.
  std::uint64_t offset = 0;
  std::string bytes;
  /// Names that are atomically set to another node, or to none (negative).
  std::vector<std::pair<std::string, int>> names;
};

/// Records the operations that it performs in a real directory, to reproduce
/// every state that a crash could have left on the disk.
class RecordedDisk : public detail::FileSystem {
 public:
  /// The current contents of `root` count as durable.
  explicit RecordedDisk(std::filesystem::path root, bool can_exchange = true);

  std::unique_ptr<detail::OutputFile> create(
      const std::filesystem::path& path) override;
  void create_directory(const std::filesystem::path& path) override;
  void rename(
      const std::filesystem::path& from,
      const std::filesystem::path& to) override;
  bool rename_to_unused(
      const std::filesystem::path& from,
      const std::filesystem::path& to) override;
  bool exchange(
      const std::filesystem::path& one,
      const std::filesystem::path& other) override;
  void link(const std::filesystem::path& from, const std::filesystem::path& to)
      override;
  void remove_file(const std::filesystem::path& path) override;
  void remove_directory(const std::filesystem::path& path) override;
  void sync_file(const std::filesystem::path& path) override;
  void sync_directory(const std::filesystem::path& directory) override;
  /// Records a write that the caller makes to a file directly; sync_file()
  /// records the syncs.
  void note_write(
      const std::filesystem::path& path,
      std::uint64_t offset,
      std::string_view bytes);
  void note_truncate(const std::filesystem::path& path, std::uint64_t size);

  [[nodiscard]] std::size_t num_operations() const {
    return operations_.size();
  }
  /// Calls `check` with a directory for every crash state after the first
  /// `num_operations`: everything synced, and many subsets of the other
  /// operations: none, all, each prefix, each operation and each pair alone or
  /// missing, and every subset if they are few; also with writes applied by
  /// half. Returns the number of states.
  std::size_t for_each_state(
      std::size_t num_operations,
      const std::filesystem::path& scratch,
      const std::function<void(const std::filesystem::path&)>& check) const;

 private:
  class File;
  int read_node(const std::filesystem::path& path);
  int find(const std::filesystem::path& path) const;
  void record(DiskOperation operation);
  void name(const std::filesystem::path& path, int node);
  static void apply(
      std::vector<DiskNode>& nodes,
      const DiskOperation& operation,
      bool by_half);

  std::filesystem::path root_;
  bool can_exchange_;
  std::shared_ptr<detail::FileSystem> disk_ = make_unsynced_disk();
  mutable std::recursive_mutex mutex_;
  std::vector<DiskNode> at_first_;
  std::vector<DiskNode> now_;
  std::vector<DiskOperation> operations_;
};

/// A file system in which a given call fails.
class FailingDisk : public detail::FileSystem {
 public:
  /// Call number `fails_at`, from 0, throws `error` (ENOSPC, EIO, EROFS). A
  /// failing write writes half. Later calls also fail if `goes_on`.
  FailingDisk(std::size_t fails_at, int error, bool goes_on);

  std::unique_ptr<detail::OutputFile> create(
      const std::filesystem::path& path) override;
  void create_directory(const std::filesystem::path& path) override;
  void rename(
      const std::filesystem::path& from,
      const std::filesystem::path& to) override;
  bool rename_to_unused(
      const std::filesystem::path& from,
      const std::filesystem::path& to) override;
  bool exchange(
      const std::filesystem::path& one,
      const std::filesystem::path& other) override;
  void link(const std::filesystem::path& from, const std::filesystem::path& to)
      override;
  void remove_file(const std::filesystem::path& path) override;
  void remove_directory(const std::filesystem::path& path) override;
  void sync_file(const std::filesystem::path& path) override;
  void sync_directory(const std::filesystem::path& directory) override;

  [[nodiscard]] bool has_failed() const { return count_ > fails_at_; }

 private:
  class File;
  [[nodiscard]] bool is_due();
  void fail_if_due();
  [[noreturn]] void fail() const;

  std::size_t fails_at_;
  int error_;
  bool goes_on_;
  std::size_t count_ = 0;
  std::mutex mutex_;
  std::shared_ptr<detail::FileSystem> disk_ = make_unsynced_disk();
};

}  // namespace accelerate::testing
