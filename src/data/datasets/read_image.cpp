#include <climits>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/error.h>
#include <accelerate/image_folder.h>

#include "base/text/text.h"
#include "data/datasets/open_file.h"
#include "data/images/decoded_image.h"

namespace accelerate {

at::Tensor read_image(const std::string& path, std::optional<int> channels) {
  using detail::format;
  if (channels && *channels != 1 && *channels != 3 && *channels != 4) {
    throw ConfigError(format(
        "[data] the number of channels of {} must be 1, 3 or 4, but is {}",
        path,
        *channels));
  }
  const detail::OpenFile file(path);
  if (file.size() > INT_MAX)
    throw ConfigError(format("[data] {} is too large for an image file", path));
  std::vector<std::uint8_t> bytes(file.size());
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  const bool is_tga = detail::to_lower(path).ends_with(".tga");
  try {
    detail::DecodedImage pixels = detail::decode_image(bytes, is_tga);
    if (channels) pixels = with_channels(std::move(pixels), *channels);
    const at::Tensor interleaved = at::from_blob(
        pixels.values.data(),
        {pixels.height, pixels.width, pixels.channels},
        at::kByte);
    return interleaved.permute({2, 0, 1}).clone(at::MemoryFormat::Contiguous);
  } catch (const detail::ImageFault& fault) {
    throw ConfigError(
        format("[data] {} cannot be decoded: {}", path, fault.text));
  }
}

}  // namespace accelerate
