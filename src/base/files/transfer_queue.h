#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include "base/files/io_ring.h"

namespace accelerate::detail {

class ScratchFile;

/// Reads and writes parts of files while others compute, several pieces at a
/// time, in the order in which they were asked for: through io_uring where the
/// kernel allows it, otherwise with threads. Thread-safe.
class TransferQueue {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{2} << 20U;
  static constexpr std::size_t kMostInFlight = 16;
  /// The result of a read beyond the end of the file.
  static constexpr int kEndOfFile = -1;

  /// The system calls, which tests replace so that any of them fails.
  struct Calls {
    ssize_t (*read)(int, void*, std::size_t, off_t) = &::pread;
    ssize_t (*write)(int, const void*, std::size_t, off_t) = &::pwrite;
  };

  /// What has been asked for. Its memory must live until it has ended.
  class Transfer;
  using Ticket = std::shared_ptr<Transfer>;

  explicit TransferQueue(bool may_use_io_uring = true);
  /// Uses threads and these calls.
  explicit TransferQueue(Calls calls);
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;
  /// Waits for everything that was asked for.
  ~TransferQueue();

  /// Begins to read or write at `offset`. Direct if offset, size and address
  /// are multiples of ScratchFile::kAlignment.
  [[nodiscard]] Ticket read(
      const ScratchFile& file,
      std::uint64_t offset,
      std::span<std::byte> memory);
  [[nodiscard]] Ticket write(
      const ScratchFile& file,
      std::uint64_t offset,
      std::span<const std::byte> memory);
  /// Returns 0, the error number of a failure, or kEndOfFile, when nothing of
  /// the transfer is in flight anymore.
  int wait(const Ticket& ticket);
  [[nodiscard]] bool has_ended(const Ticket& ticket) const;

 private:
  struct Piece;

  Ticket begin(
      const ScratchFile& file,
      std::uint64_t offset,
      std::byte* memory,
      std::size_t size,
      bool is_write);
  void submit_waiting();
  bool submit(Piece& piece);
  void end(std::unique_ptr<Piece> piece, ssize_t result);
  void collect();
  void work();

  mutable std::mutex mutex_;
  std::condition_variable ended_, asked_;
  std::deque<std::unique_ptr<Piece>> waiting_;
  std::size_t num_in_flight_ = 0;
  bool is_closing_ = false;
  Calls calls_;
  std::unique_ptr<IoRing> ring_;  // null: threads read and write
  std::vector<std::thread> threads_;
};

}  // namespace accelerate::detail
