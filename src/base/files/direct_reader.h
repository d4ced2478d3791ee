#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <sys/types.h>
#include <unistd.h>

namespace accelerate::detail {

class IoRing;

/// Reads ranges of files past the page cache: a cold file then arrives at disk
/// speed, without a copy through pages that are never read again. Several
/// pieces are in flight through io_uring where the kernel allows it; otherwise
/// each piece blocks, so use several threads with one reader each. Memory in
/// use: kMostPieces pieces. Not thread-safe.
class DirectReader {
 public:
  static constexpr std::size_t kPieceBytes = 1U << 20U;
  static constexpr std::size_t kMostPieces = 8;
  /// Direct reads begin and end at multiples of this many bytes.
  static constexpr std::size_t kAlignment = 4096;
  /// The result of a read beyond the end of the file.
  static constexpr int kEndOfFile = -1;

  /// A file opened twice for reading.
  struct File {
    int direct = -1;  // with O_DIRECT
    int plain = -1;   // for reads that `direct` refuses
    /// The addresses to which `direct` can read are multiples of this.
    std::size_t memory_alignment = kAlignment;
  };

  /// Returns where the bytes [offset, offset + size) of the file may be read to
  /// directly, or null to use the reader's own memory. Called in the order of
  /// offsets, more than once for some.
  using Place =
      std::function<std::byte*(std::uint64_t offset, std::size_t size)>;
  /// Receives the next bytes of the range, which begin at `offset` in the file.
  using Take =
      std::function<void(std::uint64_t offset, std::span<const std::byte>)>;
  /// The bytes [begin, end) of a file.
  struct Range {
    const File* file = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    Place place = nullptr;
    Take take = nullptr;
    /// Called at the end, with what read() returns for one range.
    std::function<void(int result)> done = nullptr;
  };
  /// The range to read next, if there is one now.
  using NextRange = std::function<std::optional<Range>()>;
  /// A call like ::pread.
  using Read = ssize_t (*)(int file, void* out, std::size_t size, off_t offset);

  explicit DirectReader(bool may_use_io_uring = true);
  /// Reads with `call` instead of system calls, so that tests can make any read
  /// fail.
  explicit DirectReader(Read call);
  DirectReader(const DirectReader&) = delete;
  DirectReader& operator=(const DirectReader&) = delete;
  ~DirectReader();

  /// Reads the bytes [begin, end) and passes them to `take` in order, in
  /// pieces. Complete blocks go where `place` says; `place` may be null.
  /// Returns 0, the error number of a failure, or kEndOfFile. Nothing is left
  /// in flight when it returns, or when it throws what `take` threw.
  int read(
      const File& file,
      std::uint64_t begin,
      std::uint64_t end,
      const Place& place,
      const Take& take);

  /// Reads one range after another, requesting the next while pieces of the
  /// previous one are in flight, so that the disk is never idle. Calls `next`
  /// whenever there is room for a piece; returns once it has no more and
  /// nothing is in flight. A range that fails does not end the others; an
  /// exception from a callback does.
  void read(const NextRange& next);

 private:
  struct Slot;
  struct ActiveRange;
  class InFlight;

  Slot& slot(std::uint64_t piece);
  std::byte* memory_of(std::uint64_t slot);
  void lay_out(Slot& slot);
  void start(Slot& slot);
  void wait_for_one();
  void await(Slot& slot);
  int complete(Slot& slot) const;

  std::array<std::unique_ptr<Slot>, kMostPieces> slots_;
  /// Memory for pieces without a destination of their own, one after another;
  /// null until one is read.
  void* memory_ = nullptr;
  std::unique_ptr<IoRing> ring_;  // null: io_uring is unavailable
  std::size_t num_in_flight_ = 0;
  Read read_;
};

/// Reads until `out` is full, through the page cache unless the file is open
/// with O_DIRECT. Returns 0, an error number, or DirectReader::kEndOfFile.
int read_all(
    int file,
    std::uint64_t offset,
    std::span<std::byte> out,
    DirectReader::Read call = ::pread);

/// The alignment that direct reads need of their addresses; kAlignment where
/// the kernel does not report it.
std::size_t direct_memory_alignment(int file);

}  // namespace accelerate::detail
