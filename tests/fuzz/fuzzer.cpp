// One libFuzzer program per target: -DTARGET=name.
#include <cstdint>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data,
    std::size_t size) {
  accelerate::fuzz::TARGET(
      std::as_bytes(std::span<const std::uint8_t>(data, size)));
  return 0;
}
