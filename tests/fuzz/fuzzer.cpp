// One libFuzzer program per target: -DTARGET=name.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "fuzz/memory_in_use.h"
#include "fuzz/targets.h"

namespace {

constexpr const accelerate::fuzz::Target& target_called(std::string_view name) {
  for (const accelerate::fuzz::Target& target : accelerate::fuzz::kTargets) {
    if (target.name == name) return target;
  }
  throw "no such target";
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
      1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

#define NAME_OF(target) #target
#define QUOTED(target) NAME_OF(target)

extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data,
    std::size_t size) {
  constexpr const accelerate::fuzz::Target& kTarget =
      target_called(QUOTED(TARGET));
  // Sanitizers slow programs down tenfold.
  constexpr double kOtherSeconds = 4, kSecondsPerByte = 1e-4;
  const double begin = cpu_seconds();
  const std::size_t memory = accelerate::fuzz::peak_of_memory([&] {
    kTarget.run(std::as_bytes(std::span<const std::uint8_t>(data, size)));
  });
  const double seconds = cpu_seconds() - begin;
  const bool is_slow =
      seconds > kOtherSeconds + kSecondsPerByte * static_cast<double>(size);
  if (is_slow ||
      memory > kTarget.other_memory + kTarget.memory_per_byte * size) {
    std::fprintf(
        stderr,
        "%s: %zu bytes of input took %zu bytes of memory and %.1f s\n",
        kTarget.name.data(),
        size,
        memory,
        seconds);
    std::abort();
  }
  return 0;
}
