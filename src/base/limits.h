#pragma once

#include <cstddef>

namespace accelerate::detail {

/// Readers of files refuse tensors with more dimensions. LibTorch's operators
/// do not take more either.
inline constexpr std::size_t kMostDimensions = 64;

/// Readers of PyTorch's files refuse longer tensor names and storage keys: a
/// pickle can repeat a name for two bytes.
inline constexpr std::size_t kMostNameBytes = 4096;

}  // namespace accelerate::detail
