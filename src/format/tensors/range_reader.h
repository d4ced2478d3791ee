#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/files/direct_reader.h"
#include "format/tensors/input_file.h"

namespace accelerate::detail {

/// Bytes of a file that are wanted in memory.
struct FileSegment {
  std::uint64_t offset = 0;
  std::span<std::byte> out;
};

/// The bytes [begin, end) of a file, and where they are wanted.
struct FileRange {
  const InputFile* file = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// Sorted, non-overlapping, inside the range.
  std::vector<FileSegment> segments = {};
  /// True for bytes that other readers will want soon.
  bool keeps_cached = false;
};

/// Reads ranges of files into memory: past the page cache from a cold disk;
/// through it where the bytes are cached, where other readers will want them,
/// or where the file system has no direct reads. Not thread-safe.
class RangeReader {
 public:
  /// Shorter ranges are not worth setting up direct reads.
  static constexpr std::uint64_t kLeastDirectBytes = 512U << 10U;

  /// Called with all bytes of a range, in order and piece by piece, each while
  /// it is in the processor's cache.
  using Visit = std::function<void(std::span<const std::byte>)>;

  /// A range to read.
  struct Task {
    FileRange range;
    Visit visit = nullptr;
    /// Called at the end, with the failure if there is one: what
    /// InputFile::read_at() or `visit` has thrown.
    std::function<void(std::exception_ptr failure)> done;
  };
  /// What to read next, if there is something now.
  using NextTask = std::function<std::optional<Task>()>;

  /// Throws as InputFile::read_at(), and what `visit` throws.
  void read(const FileRange& range, const Visit& visit = nullptr);

  /// Reads one range after another, as DirectReader::read() does.
  void read(const NextTask& next);

 private:
  static bool is_direct(const FileRange& range);
  std::optional<Task> next_direct(const NextTask& next);
  void read_buffered(const FileRange& range, const Visit& visit);

  /// Created for the first direct read.
  std::optional<DirectReader> direct_;
  std::vector<std::byte> scratch_;
};

/// Number of threads worth using to read `num_ranges`, each with its own
/// RangeReader: num_helpful_threads(), but at least two, since one waits for a
/// disk while another copies.
std::size_t num_reading_threads(std::size_t num_ranges);

}  // namespace accelerate::detail
