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

/// Bytes of a file to read into memory.
struct FileSegment {
  std::uint64_t offset = 0;
  std::span<std::byte> out;
};

/// The bytes [begin, end) of a file, and their destinations.
struct FileRange {
  const InputFile* file = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// Sorted, non-overlapping, inside the range.
  std::vector<FileSegment> segments = {};
  /// Keeps the bytes in the page cache, for other readers that need them soon.
  bool keeps_cached = false;
};

/// Reads ranges of files into memory. Reads bypass the page cache, unless the
/// range is short, the bytes are cached, other readers will need them, or the
/// file system does not support direct reads. Not thread-safe.
class RangeReader {
 public:
  /// Shorter ranges are not worth setting up direct reads.
  static constexpr std::uint64_t kLeastDirectBytes = 512U << 10U;

  /// Called with all bytes of a range, in order and piece by piece, while each
  /// piece is in the processor's cache.
  using Visit = std::function<void(std::span<const std::byte>)>;

  /// A range to read.
  struct Task {
    FileRange range;
    Visit visit = nullptr;
    /// Called at the end, with what InputFile::read_at() or `visit` threw, or
    /// null.
    std::function<void(std::exception_ptr failure)> done;
  };
  /// Returns what to read next, if there is something now.
  using NextTask = std::function<std::optional<Task>()>;

  /// Reads one range. Throws what InputFile::read_at() and `visit` throw.
  void read(const FileRange& range, const Visit& visit = nullptr);

  /// Reads one range after another, like DirectReader::read().
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
/// RangeReader: num_helpful_threads(), but at least two for several ranges,
/// since one waits for a disk while another copies.
std::size_t num_reading_threads(std::size_t num_ranges);

}  // namespace accelerate::detail
