#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// One image: a byte per channel, the channels of a pixel together, row by
/// row from the top.
struct Pixels {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::string bytes;
};

/// The images of a batch, or the only one. Floats are multiplied by 255,
/// clipped and truncated, as torch.utils.tensorboard and wandb.Image do it;
/// NaN becomes 0. Throws Error if layout, shape and values do not fit together,
/// or an image has no pixels or other than 1 to 4 channels.
std::vector<Pixels> separate_images(const TrackedImages& images);

/// The image with red, green and blue: gray is repeated, more channels stay.
Pixels in_colour(const Pixels& image);

/// Images of one size side by side, eight in a row, without gaps. What remains
/// of the last row is black. At least one image.
Pixels image_grid(const std::vector<Pixels>& images);

/// The image as a PNG file.
std::string png_of(const Pixels& image);

}  // namespace accelerate::detail
