#pragma once

#include <chrono>

#include <c10/core/DeviceType.h>

namespace accelerate::detail {

/// The default wait for a silent peer: as in PyTorch, shorter where NCCL
/// connects the ranks.
constexpr std::chrono::seconds default_timeout(c10::DeviceType device) {
  return std::chrono::seconds(device == c10::DeviceType::CUDA ? 600 : 1800);
}

}  // namespace accelerate::detail
