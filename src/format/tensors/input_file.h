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

namespace accelerate::detail {

/// Size of the chunks in which a checkpoint's files are hashed (the last may be
/// shorter), so that threads can share a file and a chunk can be checked alone.
inline constexpr std::uint64_t kChunkBytes = 16U << 20U;

/// Size and checksums of a file as it was written.
struct FileRecord {
  std::uint64_t num_bytes = 0;
  /// XXH3 (64 bits, seed 0) of each chunk of kChunkBytes.
  std::vector<std::uint64_t> checksums;

  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

/// A file that several threads read concurrently, in slices.
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
  /// Open for reading as long as this object lives; still the same file if
  /// another one has taken its name.
  [[nodiscard]] int descriptor() const { return file_; }
  /// Differs after any change of the file, and possibly after a new name or
  /// owner.
  struct Version {
    std::int64_t size = -1;
    std::int64_t written_seconds = 0;
    std::int64_t written_nanoseconds = 0;
    std::int64_t changed_seconds = 0;
    std::int64_t changed_nanoseconds = 0;
    bool operator==(const Version&) const = default;
  };
  [[nodiscard]] Version version_now() const;
  /// Whether version_now() differs from when the file was opened or
  /// accept_changes() was called. Thread-safe.
  [[nodiscard]] bool has_changed() const;
  /// Whether has_changed() for a reason other than a new name, owner or mode.
  [[nodiscard]] bool was_written_to() const;
  /// Accepts the file as it is now; its chunks count as unverified. No other
  /// thread may be reading.
  void accept_changes() const;
  /// Throws CheckpointError if the file is too short, Error if it cannot be
  /// read.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// Throws the error of read_at() for this result of a DirectReader, unless it
  /// is 0.
  void require_read(int result) const;
  /// All bytes of the file, mapped on first use.
  [[nodiscard]] std::span<const std::byte> bytes() const;
  /// Serves reads past the page cache; opened on first use. Its `direct` is
  /// negative where the file system does not support them.
  [[nodiscard]] const DirectReader::File& direct() const;
  /// Maps ranges of the file.
  [[nodiscard]] const MappableFile& mappable() const;
  /// Whether most pages of a range are in the page cache.
  [[nodiscard]] bool is_cached(std::uint64_t begin, std::uint64_t end) const;
  /// Whether all of them are. False where the system does not report it.
  [[nodiscard]] bool is_completely_cached(
      std::uint64_t begin,
      std::uint64_t end) const;

  /// Declares that other processes on this machine read the same bytes, so that
  /// they come from the disk once, through the page cache.
  void set_shared() const { is_shared_ = true; }
  [[nodiscard]] bool is_shared() const { return is_shared_; }

  /// Shows how many bytes read_boxes() reads; call it first.
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
  /// True if the chunk was found to be as it was written. Requires a record.
  [[nodiscard]] bool is_verified(std::uint64_t chunk) const {
    return chunk < verified_.size() && verified_[chunk];
  }
  void set_verified(std::uint64_t chunk) const { verified_.at(chunk) = true; }
  /// Whether all chunks that hold bytes [begin, end) are verified. Requires a
  /// record.
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
