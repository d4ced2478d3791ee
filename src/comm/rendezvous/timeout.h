#pragma once

#include <chrono>

#include <c10/core/DeviceType.h>

namespace accelerate::detail {

/// Returns the default timeout for a silent peer: as in PyTorch, shorter if
/// NCCL connects the ranks.
constexpr std::chrono::seconds default_timeout(c10::DeviceType device) {
  return std::chrono::seconds(device == c10::DeviceType::CUDA ? 600 : 1800);
}

}  // namespace accelerate::detail
