#pragma once

#include <cstddef>
#include <string>

#include <accelerate/error.h>

namespace accelerate::detail {

/// Thrown when memory cannot be shared; says why.
class SegmentError : public DistributedError {
 public:
  using DistributedError::DistributedError;
};

/// Memory that processes on one machine map together. It has no name in the
/// file system, and is freed when the last process that maps it ends, however
/// that happens.
class SharedSegment {
 public:
  /// The first bytes identify the segment; the shared bytes follow them.
  static constexpr std::size_t kReservedBytes = 16;

  /// Creates zeroed memory, whose pages are allocated on first touch. `name`
  /// shows among the process's open files and need not be unique. Throws
  /// SegmentError if the system has no memory for it.
  static SharedSegment create(
      std::size_t bytes,
      const char* name = "accelerate");
  /// Maps the segment that ticket() described. Throws SegmentError, saying why,
  /// if the segment is on another machine, or this process may not map it
  /// (another user's, or another container's).
  static SharedSegment open(const std::string& ticket);
  /// Maps the segment behind `path`, an open file under another process's
  /// /proc/PID/fd. Throws SegmentError as open() does.
  static SharedSegment open_file(const std::string& path);

  /// Wraps memory that the caller owns and shares only with threads of this
  /// process.
  static SharedSegment borrow(std::byte* memory, std::size_t bytes);
  /// Identifies this machine: differs between machines and between boots.
  static std::string machine();

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  /// Identifies the segment to other processes, until close_ticket() or the end
  /// of this process. Only for a segment that this process created.
  [[nodiscard]] std::string ticket() const;
  /// Call once every process has mapped the segment.
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
