#pragma once

#include <cstdint>

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
  ping
};

enum class StoreAnswer : std::uint8_t {
  ready = 0,
  not_ready = 1,
  stop_waiting = 0,
  wait_canceled = 1
};

/// The argument of `validate`, the first query of a connection.
inline constexpr std::uint32_t kStoreMagic = 0x3C85F7CE;

}  // namespace accelerate::detail
