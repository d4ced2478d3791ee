#include "track/profiler/clock_offset.h"

#include <limits>
#include <string>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr int kNumRounds = 8;

std::string key_of(const char* kind, int rank, int round) {
  return format("{}/{}/{}", kind, rank, round);
}

void answer(
    const Store& store,
    int size,
    const std::function<std::int64_t()>& now) {
  for (int rank = 1; rank < size; ++rank) {
    for (int round = 0; round < kNumRounds; ++round) {
      (void)store.get(key_of("question", rank, round));
      store.set(key_of("answer", rank, round), std::to_string(now()));
    }
  }
}

}  // namespace

ClockOffset measure_clock_offset(
    const Store& store,
    int rank,
    int size,
    const std::function<std::int64_t()>& now) {
  if (size == 1) return {};
  if (rank == 0) {
    answer(store, size, now);
    return {};
  }
  ClockOffset best{.error_ns = std::numeric_limits<std::int64_t>::max()};
  for (int round = 0; round < kNumRounds; ++round) {
    const std::int64_t asked = now();
    store.set(key_of("question", rank, round), "");
    const std::int64_t answered =
        std::stoll(store.get(key_of("answer", rank, round)));
    const std::int64_t received = now();
    const std::int64_t error = (received - asked + 1) / 2;
    if (error >= best.error_ns) continue;
    best = {asked + (received - asked) / 2 - answered, error};
  }
  return best;
}

}  // namespace accelerate::detail
