#include "trackers/media/png_pixels.h"

#include <limits>
#include <memory>

#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include <stb_image.h>
#pragma GCC diagnostic pop

namespace accelerate::detail {

std::optional<Pixels> pixels_of_png(std::string_view png) {
  if (png.size() > std::numeric_limits<int>::max()) return std::nullopt;
  const auto* const bytes = reinterpret_cast<const stbi_uc*>(png.data());
  const int size = static_cast<int>(png.size());
  int width = 0;
  int height = 0;
  int channels = 0;
  if (stbi_info_from_memory(bytes, size, &width, &height, &channels) == 0 ||
      std::int64_t{width} * height > kMostPngPixels) {
    return std::nullopt;
  }
  const std::unique_ptr<stbi_uc, void (*)(void*)> values(
      stbi_load_from_memory(bytes, size, &width, &height, &channels, 0),
      stbi_image_free);
  if (!values) return std::nullopt;
  const std::size_t num_bytes = static_cast<std::size_t>(width) *
      static_cast<std::size_t>(height) * static_cast<std::size_t>(channels);
  return Pixels{
      height,
      width,
      channels,
      std::string(reinterpret_cast<const char*>(values.get()), num_bytes)};
}

}  // namespace accelerate::detail
