#pragma once

#include <cstdint>
#include <stdexcept>

namespace accelerate::detail {

// The protocol of c10d::TCPStore since LibTorch 2.2: one byte for the query,
// then its arguments. Integers are in native byte order; strings and lists
// follow their 64-bit lengths.
enum class StoreQuery : std::uint8_t {
  validate,
  set,
  compare_set,
  get,
  add,
  check,
  wait,
  num_keys,
  delete_key,
  append,
  multi_get,
  multi_set,
  cancel_wait,
  ping,
  /// Only in this project: the launcher of another machine asks to join, with
  /// its 32-bit rank and the secret it was given (or an empty string). The
  /// answer is a StoreJoinAnswer and the secret.
  join = 0x80
};

enum class StoreAnswer : std::uint8_t {
  ready = 0,
  not_ready = 1,
  stop_waiting = 0,
  wait_canceled = 1
};

enum class StoreJoinAnswer : std::uint8_t {
  admitted,
  wrong_secret,
  machine_taken
};

/// The argument of `validate`, the first query of a connection.
inline constexpr std::uint32_t kStoreMagic = 0x3C85F7CE;

/// The limits of a store. A client whose request would exceed one is closed;
/// the protocol has no error answer.
struct StoreLimits {
  std::uint64_t max_key_bytes = 64ULL << 10U;
  /// The limit of LibTorch's own server.
  std::uint64_t max_keys_per_message = 128ULL << 10U;
  /// Size of one message, one value and one answer.
  std::uint64_t max_message_bytes = 256ULL << 20U;
  /// Memory of all keys, values, incoming messages and unread answers.
  std::uint64_t max_total_bytes = 1ULL << 30U;
};

/// Thrown if a client must be closed: it does not speak the protocol, exceeds a
/// limit, or is not admitted. The text says why, for the launcher's output.
struct StoreRefusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace accelerate::detail
