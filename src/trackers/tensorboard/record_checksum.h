#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate::detail {

/// CRC-32C (Castagnoli), rotated and offset as in TFRecord files.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace accelerate::detail
