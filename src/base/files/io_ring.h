#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace accelerate::detail {

/// Reads and writes that the kernel does meanwhile (io_uring). One thread may
/// submit while another waits; no two threads may do the same at once.
class IoRing {
 public:
  /// Null where the kernel or the build has no io_uring.
  static std::unique_ptr<IoRing> make(unsigned num_requests);
  ~IoRing();

  /// Begins to read or write at `offset` of `file`, into or from memory that
  /// stays until wait() returns `request`. False: it was not begun, and no
  /// later request will be.
  bool read(
      int file,
      std::span<std::byte> memory,
      std::uint64_t offset,
      void* request);
  bool write(
      int file,
      std::span<const std::byte> memory,
      std::uint64_t offset,
      void* request);

  /// Waits until a request has ended: which one, and the number of its bytes or
  /// a negative errno. One must be in flight.
  std::pair<void*, int> wait();

 private:
  struct State;
  explicit IoRing(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace accelerate::detail
