#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace accelerate::detail {

class IoRing;

using Bytes = std::span<const std::byte>;

/// Writes files past the page cache: a checkpoint is not read soon, so it
/// should not evict other pages or wait for the kernel's write-back. Writes
/// full blocks from its own aligned memory, with a bounded number in flight:
/// through io_uring where the kernel allows it, so that callers continue at
/// once; otherwise each call waits for its own write. Thread-safe.
class DirectWriter {
 public:
  static constexpr std::size_t kBlockBytes = 8U << 20U;
  static constexpr std::size_t kMostBlocks = 4;
  /// Offsets and sizes must be multiples of this many bytes.
  static constexpr std::size_t kAlignment = 4096;

  /// A file and its writes in flight. It must live until wait() has returned.
  struct File {
    int direct = -1;  // opened with O_DIRECT
    int plain = -1;   // for writes that `direct` refuses
    std::size_t num_in_flight = 0;
    int error = 0;
  };

  explicit DirectWriter(bool may_use_io_uring = true);
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;
  /// Precondition: wait() has returned for every file.
  ~DirectWriter();

  /// Writes the first `num_bytes` of the pieces, one after another, at
  /// `offset`; both numbers are multiples of kAlignment. The pieces may be
  /// changed once it returns. Returns 0, or the error number of a failure known
  /// so far.
  int write(
      File& file,
      std::uint64_t offset,
      std::uint64_t num_bytes,
      std::span<const Bytes> pieces);
  /// Waits for all writes of the file. Returns the error number of a failure,
  /// or 0.
  int wait(File& file);

 private:
  struct Block;
  using Lock = std::unique_lock<std::mutex>;

  Block* take_block(const File& file);
  void start(Block& block);
  void wait_for_one(Lock& lock);
  void end(Block& block, int result);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> free_;
  std::unique_ptr<IoRing> ring_;  // null: io_uring is unavailable
  std::size_t num_in_flight_ = 0;
  bool is_ring_awaited_ = false;  // by one thread
};

/// Writes all bytes, through the page cache if necessary. Returns an error
/// number, or 0.
int write_all(int file, std::uint64_t offset, Bytes bytes);

}  // namespace accelerate::detail
