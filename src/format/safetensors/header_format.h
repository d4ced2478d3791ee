#pragma once

#include <cstddef>
#include <string_view>

namespace accelerate::safetensors {

/// The key in a header that is not a tensor's.
inline constexpr std::string_view kMetadata = "__metadata__";
/// Size of the length of the header, with which a file begins.
inline constexpr std::size_t kLengthBytes = 8;

}  // namespace accelerate::safetensors
