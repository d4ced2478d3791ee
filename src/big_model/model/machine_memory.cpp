#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <accelerate/log.h>
#include <accelerate/model_device_map.h>

#include "base/machine/available_memory.h"
#include "base/text/text.h"
#include "big_model/plan/memory_limits.h"

namespace accelerate {

namespace {

int num_accelerators() {
  const auto kind = at::accelerator::getAccelerator(/*checked=*/false);
  return kind ? static_cast<int>(at::accelerator::deviceCount()) : 0;
}

// Bytes that are free on an accelerator, and those that LibTorch keeps unused.
// Nothing, with a message, for a device that does not report them.
template <class Index>
std::optional<std::int64_t> free_on_device(Index index) {
  try {
    // Versions of LibTorch before 2.10 cannot query a device.
    if constexpr (requires { at::accelerator::getMemoryInfo(index); }) {
      return static_cast<std::int64_t>(
          at::accelerator::getMemoryInfo(index).first);
    }
  } catch (const c10::Error& error) {
    Logger().log(
        LogLevel::info,
        "big_model",
        detail::format(
            "device {} is left out, since it does not "
            "report its free memory: {}",
            static_cast<int>(index),
            error.what_without_backtrace()));
  }
  return std::nullopt;
}

MaxMemory measured_memory() {
  MaxMemory limits;
  for (int i = 0; i < num_accelerators(); ++i) {
    if (const auto bytes = free_on_device(static_cast<c10::DeviceIndex>(i)))
      limits.emplace_back(i, *bytes);
  }
  if (const auto bytes = detail::available_memory())
    limits.emplace_back("cpu", static_cast<std::int64_t>(*bytes));
  return limits;
}

}  // namespace

MaxMemory get_max_memory(
    const MaxMemory& max_memory,
    const std::filesystem::path& offload_folder) {
  MaxMemory disk;
  if (!offload_folder.empty()) {
    if (const auto bytes = detail::free_disk_space(offload_folder))
      disk.emplace_back("disk", static_cast<std::int64_t>(*bytes));
  }
  if (max_memory.empty()) {
    MaxMemory limits = measured_memory();
    limits.insert(limits.end(), disk.begin(), disk.end());
    return limits;
  }
  const int count = num_accelerators();
  for (const auto& [device, size] : max_memory) {
    if (device.index().value_or(-1) >= count) {
      Logger().log(
          LogLevel::warning,
          "big_model",
          detail::format(
              "max_memory names the device {}, but this machine has {} "
              "accelerators",
              device.name(),
              count));
    }
  }
  // A limit in max_memory takes precedence.
  disk.insert(disk.end(), max_memory.begin(), max_memory.end());
  return detail::normalised_memory(disk);
}

}  // namespace accelerate
