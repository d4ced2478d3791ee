#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A decoded image: rows of pixels of interleaved channels.
struct DecodedImage {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> values = {};
};

/// Why a file cannot be decoded: "it is truncated".
struct ImageFault {
  std::string text;
};

using ImageBytes = std::span<const std::uint8_t>;

/// Pillow's limit. A few bytes can announce far larger images.
inline constexpr std::int64_t kMostPixels = 178'956'970;

/// Throws ImageFault for sizes that are not positive, or too large.
void require_image_size(std::int64_t width, std::int64_t height);

/// Decodes a JPEG, PNG, BMP, GIF, PSD or PNM file, or, since they cannot be
/// recognised, a TGA file if `is_tga`. The channels are those of the file.
/// Throws ImageFault for anything that is not complete and sound.
DecodedImage decode_image(ImageBytes bytes, bool is_tga);

/// The image with 1, 3 or 4 channels. Grey is computed as in Pillow; alpha is
/// 255, or dropped.
DecodedImage with_channels(DecodedImage pixels, int channels);

}  // namespace accelerate::detail
