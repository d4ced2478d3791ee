#pragma once

#include <cstddef>

namespace accelerate::detail {

/// Readers of files refuse tensors of more dimensions. LibTorch's operators
/// take no more, either.
inline constexpr std::size_t kMostDimensions = 64;

/// Readers of PyTorch's files refuse longer names of tensors and keys of
/// storages: a pickle repeats a name for two bytes.
inline constexpr std::size_t kMostNameBytes = 4096;

}  // namespace accelerate::detail
