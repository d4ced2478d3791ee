#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace accelerate::detail {

/// Asynchronous reads and writes through io_uring. One thread may submit while
/// another waits, but no two threads may do the same at once.
class IoRing {
 public:
  /// Null where the kernel or the build has no io_uring.
  static std::unique_ptr<IoRing> make(unsigned num_requests);
  ~IoRing();

  /// Starts a read or write at `offset` of `file`. The memory must stay valid
  /// until wait() returns `request`. Returns false if the request was not
  /// started; no later request will be either.
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

  /// Waits until a request has ended. Returns it, and the number of bytes moved
  /// or a negative errno. At least one request must be in flight.
  std::pair<void*, int> wait();

 private:
  struct State;
  explicit IoRing(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace accelerate::detail
