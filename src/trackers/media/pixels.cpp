#include "trackers/media/pixels.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>

#include <accelerate/error.h>

#include "base/text/text.h"

#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STBI_WRITE_NO_STDIO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wshadow"
#include <stb_image.h>
#include <stb_image_write.h>
#pragma GCC diagnostic pop

namespace accelerate::detail {

namespace {

constexpr std::string_view kDimensionLetters = "NCHW";
constexpr std::int64_t kGridColumns = 8;

// Sizes of an image batch and strides in values, in the order of
// kDimensionLetters. A dimension that the layout lacks has size 1.
struct ImageStrides {
  std::array<std::int64_t, 4> sizes{1, 1, 1, 1};
  std::array<std::int64_t, 4> strides{0, 0, 0, 0};
};

bool is_image_layout(std::string_view layout) {
  for (const char letter : layout) {
    if (kDimensionLetters.find(letter) == std::string_view::npos ||
        std::ranges::count(layout, letter) > 1) {
      return false;
    }
  }
  return layout.find('H') != std::string_view::npos &&
      layout.find('W') != std::string_view::npos;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

ImageStrides image_strides(const TrackedImages& images) {
  if (!is_image_layout(images.layout) ||
      images.layout.size() != images.shape.size()) {
    throw Error(format(
        "[trackers] images of shape {} have the layout \"{}\", but a layout "
        "must have one letter per dimension: H, W, and optionally N and C",
        shape_text(images.shape),
        printable(images.layout)));
  }
  ImageStrides result;
  std::int64_t num_values = 1;
  for (std::size_t i = images.shape.size(); i-- > 0;) {
    const std::size_t dim = kDimensionLetters.find(images.layout[i]);
    if (images.shape[i] < 1 ||
        images.shape[i] > std::numeric_limits<int>::max() ||
        num_values > std::numeric_limits<int>::max() / images.shape[i]) {
      throw Error(format(
          "[trackers] images of shape {} have no pixels, or too many",
          shape_text(images.shape)));
    }
    result.sizes.at(dim) = images.shape[i];
    result.strides.at(dim) = num_values;
    num_values *= images.shape[i];
  }
  const std::size_t num_bytes =
      static_cast<std::size_t>(num_values) * (images.is_float ? 4 : 1);
  if (images.values.size() != num_bytes || result.sizes[1] > 4) {
    throw Error(format(
        "[trackers] images of shape {} and layout {} have {} bytes of values, "
        "but must have {}, and 1 to 4 channels",
        shape_text(images.shape),
        images.layout,
        images.values.size(),
        num_bytes));
  }
  return result;
}

char pixel_byte(const TrackedImages& images, std::int64_t index) {
  const auto place = static_cast<std::size_t>(index);
  if (!images.is_float) return images.values[place];
  float value = 0;
  std::memcpy(
      &value, images.values.data() + place * sizeof value, sizeof value);
  // The comparison is false for NaN.
  const float scaled = value > 0 ? std::min(value * 255.0F, 255.0F) : 0.0F;
  return static_cast<char>(static_cast<unsigned char>(scaled));
}

}  // namespace

std::vector<Pixels> separate_images(const TrackedImages& images) {
  const auto [sizes, strides] = image_strides(images);
  const auto [num_images, channels, height, width] = sizes;
  std::vector<Pixels> result;
  for (std::int64_t n = 0; n < num_images; ++n) {
    Pixels& image = result.emplace_back();
    image = {height, width, channels, {}};
    image.bytes.reserve(static_cast<std::size_t>(height * width * channels));
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        for (std::int64_t c = 0; c < channels; ++c) {
          image.bytes += pixel_byte(
              images,
              n * strides[0] + c * strides[1] + y * strides[2] +
                  x * strides[3]);
        }
      }
    }
  }
  return result;
}

Pixels in_colour(const Pixels& image) {
  if (image.channels >= 3) return image;
  const auto step = static_cast<std::size_t>(image.channels);
  // Gray with alpha has two channels, and becomes four.
  Pixels result{image.height, image.width, image.channels + 2, {}};
  for (std::size_t i = 0; i < image.bytes.size(); i += step) {
    result.bytes.append(3, image.bytes[i]);
    if (step == 2) result.bytes += image.bytes[i + 1];
  }
  return result;
}

Pixels image_grid(const std::vector<Pixels>& images) {
  const Pixels& first = images.front();
  const auto num_images = static_cast<std::int64_t>(images.size());
  const std::int64_t columns = std::min(num_images, kGridColumns);
  const std::int64_t rows = (num_images + columns - 1) / columns;
  Pixels grid{rows * first.height, columns * first.width, first.channels, {}};
  grid.bytes.assign(
      static_cast<std::size_t>(grid.height * grid.width * grid.channels), '\0');
  const auto row_bytes = static_cast<std::size_t>(first.width * first.channels);
  for (std::int64_t i = 0; i < num_images; ++i) {
    for (std::int64_t y = 0; y < first.height; ++y) {
      const std::int64_t row = i / columns * first.height + y;
      const auto to = static_cast<std::size_t>(row * columns + i % columns);
      grid.bytes.replace(
          to * row_bytes,
          row_bytes,
          images[static_cast<std::size_t>(i)].bytes,
          static_cast<std::size_t>(y) * row_bytes,
          row_bytes);
    }
  }
  return grid;
}

std::string png_of(const Pixels& image) {
  int size = 0;
  const std::unique_ptr<unsigned char, decltype([](unsigned char* bytes) {
                          STBIW_FREE(bytes);
                        })>
      file(stbi_write_png_to_mem(
          reinterpret_cast<const unsigned char*>(image.bytes.data()),
          static_cast<int>(image.width * image.channels),
          static_cast<int>(image.width),
          static_cast<int>(image.height),
          static_cast<int>(image.channels),
          &size));
  if (!file) {
    throw Error(format(
        "[trackers] an image of {} by {} pixels does not fit into memory",
        image.width,
        image.height));
  }
  return {
      reinterpret_cast<const char*>(file.get()),
      static_cast<std::size_t>(size)};
}

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
