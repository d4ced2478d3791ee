#pragma once

#include <optional>
#include <string_view>

#include "trackers/media/pixels.h"

namespace accelerate::detail {

/// The image in a PNG file; nothing if it is not a PNG, or has more than
/// `kMostPngPixels`.
std::optional<Pixels> pixels_of_png(std::string_view png);

inline constexpr std::int64_t kMostPngPixels = std::int64_t{1} << 26;

}  // namespace accelerate::detail
