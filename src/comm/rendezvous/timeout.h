#pragma once

#include <chrono>

#include <c10/core/DeviceType.h>

namespace accelerate::detail {

/// How long a silent peer is waited for unless somebody says: as in PyTorch,
/// less long where NCCL connects the ranks.
constexpr std::chrono::seconds default_timeout(c10::DeviceType device) {
  return std::chrono::seconds(device == c10::DeviceType::CUDA ? 600 : 1800);
}

}  // namespace accelerate::detail
