#include "data/images/decoded_image.h"

#include <array>

#include "base/text/text.h"
#include "data/images/image_checks.h"

namespace accelerate::detail {

namespace {

struct Signature {
  std::string_view bytes;
  std::string_view name;
};
// Formats that are recognised only to be named.
constexpr std::array<Signature, 4> kOthers{
    {{"II*", "TIFF"}, {"MM", "TIFF"}, {"RIFF", "WebP"}, {"%PDF", "PDF"}}};

std::uint8_t grey_of(const std::uint8_t* pixel) {
  // ITU-R 601-2, in the fixed-point numbers of Pillow.
  const std::uint32_t sum =
      19595U * pixel[0] + 38470U * pixel[1] + 7471U * pixel[2] + 0x8000U;
  return static_cast<std::uint8_t>(sum >> 16U);
}

}  // namespace

void require_image_size(std::int64_t width, std::int64_t height) {
  if (width <= 0 || height <= 0)
    throw ImageFault{format("it announces {} by {} pixels", width, height)};
  if (width > kMostPixels / height) {
    throw ImageFault{format(
        "it announces {} by {} pixels; at most {} pixels are decoded",
        width,
        height,
        kMostPixels)};
  }
}

DecodedImage decode_image(ImageBytes bytes, bool is_tga) {
  const std::string_view text(
      reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() > 1 && text[0] == 'P' && text[1] >= '1' && text[1] <= '7')
    return decode_pnm(bytes);
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(bytes);
  if (text.starts_with("GIF87a") || text.starts_with("GIF89a"))
    return decode_gif(bytes);
  if (text.starts_with("BM")) return decode_bmp(bytes);
  if (text.starts_with("8BPS")) return decode_psd(bytes);
  if (text.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes);
  if (is_tga) return decode_tga(bytes);
  for (const Signature& other : kOthers) {
    if (text.starts_with(other.bytes)) {
      throw ImageFault{
          format("it is a {} file; convert it to PNG or JPEG", other.name)};
    }
  }
  throw ImageFault{
      "it is not a JPEG, PNG, BMP, GIF, PSD or PNM file, and not named .tga"};
}

DecodedImage with_channels(DecodedImage pixels, int channels) {
  if (pixels.channels == channels) return pixels;
  DecodedImage out{pixels.width, pixels.height, channels};
  const bool is_grey = pixels.channels < 3;
  const bool has_alpha = pixels.channels % 2 == 0;
  const auto from = static_cast<std::size_t>(pixels.channels);
  const auto to = static_cast<std::size_t>(channels);
  out.values.resize(pixels.values.size() / from * to);
  std::uint8_t* next = out.values.data();
  for (std::size_t i = 0; i < pixels.values.size(); i += from, next += to) {
    const std::uint8_t* const pixel = &pixels.values[i];
    if (channels == 1) {
      next[0] = is_grey ? pixel[0] : grey_of(pixel);
      continue;
    }
    for (std::size_t k = 0; k < 3; ++k) next[k] = pixel[is_grey ? 0 : k];
    if (channels == 4) next[3] = has_alpha ? pixel[from - 1] : 255;
  }
  return out;
}

}  // namespace accelerate::detail
