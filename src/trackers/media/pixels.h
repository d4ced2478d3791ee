#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// One image: one byte per channel, the channels of a pixel together, row by
/// row from the top.
struct Pixels {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::string bytes;
};

/// The images of a batch, or the only one. Floats are multiplied by 255,
/// clipped and truncated, as torch.utils.tensorboard and wandb.Image do; NaN
/// becomes 0. Throws Error if layout, shape and values do not fit together, or
/// an image has no pixels or other than 1 to 4 channels.
std::vector<Pixels> separate_images(const TrackedImages& images);

/// The image in RGB: gray is repeated; images with more channels stay as they
/// are.
Pixels in_colour(const Pixels& image);

/// Images of one size in a grid, eight per row, without gaps. The rest of the
/// last row is black. Takes at least one image.
Pixels image_grid(const std::vector<Pixels>& images);

/// The image as a PNG file.
std::string png_of(const Pixels& image);

/// The image in a PNG file; nothing if it is not a PNG, or has more than
/// `kMostPngPixels`.
std::optional<Pixels> pixels_of_png(std::string_view png);

inline constexpr std::int64_t kMostPngPixels = std::int64_t{1} << 26;

}  // namespace accelerate::detail
