#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace accelerate::safetensors {

/// The key in a header that is not a tensor's.
inline constexpr std::string_view kMetadata = "__metadata__";
/// Size of the length of the header, with which a file begins.
inline constexpr std::size_t kLengthBytes = 8;

/// The length of the header that a file's first bytes give, of any size.
std::uint64_t header_length(std::span<const std::byte, kLengthBytes> start);

}  // namespace accelerate::safetensors
