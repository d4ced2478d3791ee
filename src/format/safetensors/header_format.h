#pragma once

#include <cstddef>
#include <string_view>

namespace accelerate::safetensors {

/// The entry of a header that is not a tensor.
inline constexpr std::string_view kMetadata = "__metadata__";
/// A file begins with the length of its header in so many bytes.
inline constexpr std::size_t kLengthBytes = 8;

}  // namespace accelerate::safetensors
