#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace accelerate::testing {

/// The system's own, but nothing waits for the disk: for tests that do not cut
/// the power.
std::shared_ptr<detail::FileSystem> make_unsynced_disk();

/// Files and directories as a disk knows them: by number, with names in
/// directories.
struct DiskNode {
  bool is_directory = false;
  std::string bytes;
  std::map<std::string, int> entries;
};

/// What happened to a disk, in terms of nodes.
struct DiskOperation {
  enum class Kind { write, sync, names } kind = Kind::names;
  /// The file or directory of a write or sync; the directory of a name.
  int node = 0;
  std::uint64_t offset = 0;
  std::string bytes;
  /// Names that come to mean another node, or none (below 0), all at once.
  std::vector<std::pair<std::string, int>> names;
};

/// Does what it is told in a real directory and remembers it, to give every
/// state in which a crash could have left the disk.
class RecordedDisk : public detail::FileSystem {
 public:
  /// What lies in `root` now is durable.
  explicit RecordedDisk(std::filesystem::path root, bool can_exchange = true);

  std::unique_ptr<detail::OutputFile> create(
      const std::filesystem::path& path) override;
  void create_directory(const std::filesystem::path& path) override;
  void rename(
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

  [[nodiscard]] std::size_t num_operations() const {
    return operations_.size();
  }
  /// After the first `num_operations`: calls `check` with a directory that
  /// holds what was synced, and, of what was not, each of many subsets: none,
  /// all, each prefix, each one and each pair alone or missing, all of them if
  /// they are few; writes also by half. Returns the number of states.
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

/// Fails at one call, the way a disk does.
class FailingDisk : public detail::FileSystem {
 public:
  /// The call number `fails_at`, from 0, throws `error` (ENOSPC, EIO, EROFS).
  /// A write writes half before. Later calls fail too if `goes_on`.
  FailingDisk(std::size_t fails_at, int error, bool goes_on);

  std::unique_ptr<detail::OutputFile> create(
      const std::filesystem::path& path) override;
  void create_directory(const std::filesystem::path& path) override;
  void rename(
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
