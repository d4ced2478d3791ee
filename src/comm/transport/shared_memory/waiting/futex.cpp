#include "comm/transport/shared_memory/waiting/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace accelerate::detail {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// Without FUTEX_PRIVATE_FLAG, since processes share the word.
void futex_wait(
    std::atomic<std::uint32_t>& word,
    std::uint32_t expected,
    std::chrono::nanoseconds longest) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(longest);
  const timespec timeout{
      .tv_sec = static_cast<std::time_t>(seconds.count()),
      .tv_nsec = static_cast<long>((longest - seconds).count())};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace accelerate::detail
