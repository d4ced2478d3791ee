#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A file without a name, for data that nobody needs once this process has
/// ended: the system frees it then, however the process ends, and no other
/// process can mistake it for its own. Thread-safe.
class ScratchFile {
 public:
  /// Places and sizes are multiples of this many bytes, as direct reads and
  /// writes need it.
  static constexpr std::uint64_t kAlignment = 4096;

  /// Makes the file in an existing directory. `what` it holds is part of error
  /// messages. Throws Error if there can be no file.
  ScratchFile(std::filesystem::path directory, std::string what);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  /// Reserves room on the disk, and returns where it begins. What a disk
  /// cannot hold is refused here, never by a later write. Throws Error.
  [[nodiscard]] std::uint64_t allocate(std::uint64_t bytes);
  /// Reserves room for later calls of allocate(). Throws Error.
  void reserve(std::uint64_t bytes);
  void free(std::uint64_t begin, std::uint64_t bytes);

  /// Opened with O_DIRECT; -1 where the file system has no such files.
  [[nodiscard]] int direct() const { return direct_; }
  /// Goes through the page cache.
  [[nodiscard]] int plain() const { return plain_; }
  /// "the optimizer state of rank 0 in /nvme", for messages.
  [[nodiscard]] const std::string& description() const { return description_; }
  /// Bytes on the disk.
  [[nodiscard]] std::uint64_t size() const;

  /// Rounds up to a multiple of kAlignment.
  [[nodiscard]] static std::uint64_t rounded(std::uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  void grow_to(std::uint64_t size);

  std::filesystem::path directory_;
  std::string description_;
  int direct_ = -1;
  int plain_ = -1;
  mutable std::mutex mutex_;
  std::uint64_t end_ = 0;   // of what is allocated
  std::uint64_t size_ = 0;  // of what is reserved
  /// Free places by size, which is nearly always needed again.
  std::map<std::uint64_t, std::vector<std::uint64_t>> free_;
};

}  // namespace accelerate::detail
