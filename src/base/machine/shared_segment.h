#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <accelerate/error.h>

namespace accelerate::detail {

/// Says why memory cannot be shared.
class SegmentError : public DistributedError {
 public:
  using DistributedError::DistributedError;
};

/// Memory that processes of one machine map together. It has no name in a file
/// system: it is gone when the last process that maps it is, however that one
/// ends.
class SharedSegment {
 public:
  /// The first bytes identify the segment; what is shared lies behind them.
  static constexpr std::size_t kReservedBytes = 16;

  /// Zeroed memory, of which pages are taken from the system when they are first
  /// touched. `name` shows among the process's open files and need not be
  /// unique. Throws SegmentError if the system gives no memory.
  static SharedSegment create(
      std::size_t bytes,
      const char* name = "accelerate");
  /// Maps the segment that ticket() described. Throws SegmentError, saying
  /// why, if it is another machine's, or if this process may not map it (another
  /// user's, or another container's).
  static SharedSegment open(const std::string& ticket);
  /// Maps the segment that the open file `path` is, below another process's
  /// /proc/PID/fd. Throws SegmentError as open() does.
  static SharedSegment open_file(const std::string& path);

  /// Memory that the caller owns and shares with threads of this process only.
  static SharedSegment borrow(std::byte* memory, std::size_t bytes);
  /// Names this machine: differs between machines, and between starts of one.
  static std::string machine();

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  /// Names the segment to other processes, until close_ticket() or the end of
  /// this process. For a segment that this process created.
  [[nodiscard]] std::string ticket() const;
  /// Call when all have mapped it.
  void close_ticket();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  SharedSegment() = default;
  SharedSegment(int descriptor, std::size_t bytes);

  bool is_borrowed_ = false;
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace accelerate::detail
