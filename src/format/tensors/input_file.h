#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/files/direct_reader.h"
#include "base/files/files.h"
#include "base/files/mappable_file.h"
#include "base/progress/byte_progress.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

/// A file that several threads read at once, in slices.
class InputFile {
 public:
  /// Throws Error if it cannot be opened. With a record, read_boxes() compares
  /// checksums.
  explicit InputFile(
      std::filesystem::path path,
      std::optional<FileRecord> record = std::nullopt);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Open for reading as long as this object lives; the same file, even if
  /// another one has its name by now.
  [[nodiscard]] int descriptor() const { return file_; }
  /// What a change of the file changes, too; a new name or owner may, as well.
  struct Version {
    std::int64_t size = -1;
    std::int64_t written_seconds = 0;
    std::int64_t written_nanoseconds = 0;
    std::int64_t changed_seconds = 0;
    std::int64_t changed_nanoseconds = 0;
    bool operator==(const Version&) const = default;
  };
  [[nodiscard]] Version version_now() const;
  /// Whether version_now() is another one than when the file was opened or
  /// accept_changes() was called. Threads may ask at once.
  [[nodiscard]] bool has_changed() const;
  /// The same, but for a change of its name, owner or mode.
  [[nodiscard]] bool was_written_to() const;
  /// Takes the file as it is now. Chunks count as not verified. Not while
  /// another thread reads.
  void accept_changes() const;
  /// Throws CheckpointError if the file is too short, Error if it cannot be
  /// read.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// Throws what read_at() throws for this result of a DirectReader, unless it
  /// is 0.
  void require_read(int result) const;
  /// All bytes of the file, mapped when first asked for.
  [[nodiscard]] std::span<const std::byte> bytes() const;
  /// For reads past the page cache; opened when first asked for. Its `direct`
  /// is negative where the file system has no such reads.
  [[nodiscard]] const DirectReader::File& direct() const;
  /// For mapping parts of it.
  [[nodiscard]] const MappableFile& mappable() const;
  /// Whether most pages of a range are in the page cache.
  [[nodiscard]] bool is_cached(std::uint64_t begin, std::uint64_t end) const;
  /// Whether all of them are. False where the system does not tell.
  [[nodiscard]] bool is_completely_cached(
      std::uint64_t begin,
      std::uint64_t end) const;

  /// Says that other processes of this machine read the same bytes, too, which
  /// should then come from the disk once, through the page cache.
  void set_shared() const { is_shared_ = true; }
  [[nodiscard]] bool is_shared() const { return is_shared_; }

  /// Shows how many bytes read_boxes() reads; set before it is called.
  void set_progress(std::shared_ptr<ByteProgress> progress) const {
    progress_ = std::move(progress);
  }
  void count_read(std::uint64_t num_bytes) const {
    if (progress_) progress_->add(num_bytes);
  }

  /// The size and checksums that the file should have; null if its bytes are
  /// not checked.
  [[nodiscard]] const FileRecord* record() const {
    return record_ ? &*record_ : nullptr;
  }
  /// True if a chunk was found to be as it was written. Requires a record.
  [[nodiscard]] bool is_verified(std::uint64_t chunk) const {
    return chunk < verified_.size() && verified_[chunk];
  }
  void set_verified(std::uint64_t chunk) const { verified_.at(chunk) = true; }
  /// Whether all chunks that hold bytes [begin, end) are. Requires a record.
  [[nodiscard]] bool is_verified(std::uint64_t begin, std::uint64_t end) const;

 private:
  std::filesystem::path path_;
  int file_;
  std::optional<FileRecord> record_;
  mutable std::mutex version_mutex_;
  mutable Version version_;
  /// One entry per chunk.
  mutable std::vector<std::atomic<bool>> verified_;
  mutable std::atomic<bool> is_shared_ = false;
  mutable std::shared_ptr<ByteProgress> progress_;
  mutable std::once_flag is_mapped_;
  mutable std::optional<MappedFile> mapped_;
  mutable std::once_flag is_mappable_;
  mutable std::optional<MappableFile> mappable_;
  mutable std::once_flag is_direct_open_;
  mutable DirectReader::File direct_;
};

}  // namespace accelerate::detail
