#pragma once

#include <cstdint>

namespace accelerate::detail {

// What c10d::TCPStore's clients and servers say to each other since LibTorch
// 2.2: a byte for the question, then its arguments; integers as the machine
// has them, texts and lists after their 64-bit lengths.
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

/// Comes first, after `validate`.
inline constexpr std::uint32_t kStoreMagic = 0x3C85F7CE;

}  // namespace accelerate::detail
