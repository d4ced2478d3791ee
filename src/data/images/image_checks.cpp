#include "data/images/image_checks.h"

#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/text/text.h"
#include "data/images/stb_decoder.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void throw_truncated() { throw ImageFault{"it is truncated"}; }

// Numbers of a file; throws ImageFault beyond its end.
std::uint32_t big_endian(ImageBytes bytes, std::size_t at, std::size_t width) {
  if (at + width > bytes.size()) throw_truncated();
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value = value << 8U | bytes[at + i];
  return value;
}
std::uint32_t
little_endian(ImageBytes bytes, std::size_t at, std::size_t width) {
  if (at + width > bytes.size()) throw_truncated();
  std::uint32_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8U | bytes[at + i];
  return value;
}

// Throws ImageFault for a table of more codes than there are bytes, which the
// decoder would write beyond its memory. [begin, end) is a DHT segment's data.
void check_huffman_tables(
    ImageBytes bytes,
    std::size_t begin,
    std::size_t end) {
  constexpr std::size_t kLengths = 16, kMostCodes = 256;
  while (begin < end) {
    std::size_t num_codes = 0;
    for (std::size_t i = 1; i <= kLengths; ++i)
      num_codes += big_endian(bytes, begin + i, 1);
    if (num_codes > kMostCodes)
      throw ImageFault{"as JPEG: it has a Huffman table that is too long"};
    begin += 1 + kLengths + num_codes;
  }
}

// Throws ImageFault for a frame of more blocks than the file has bits: each
// takes at least one, and the decoder would fill in the others. The frame's
// segment is at `at`.
void check_jpeg_size(ImageBytes bytes, std::size_t at) {
  constexpr std::size_t kBlock = 64;
  const std::size_t height = big_endian(bytes, at + 3, 2);
  const std::size_t width = big_endian(bytes, at + 5, 2);
  if (width * height / kBlock > bytes.size() * 8)
    throw ImageFault{"as JPEG: truncated"};
}

// Looks at the segments of a JPEG up to the end of the image.
void check_segments(ImageBytes bytes) {
  constexpr std::uint8_t kMarker = 0xff, kTables = 0xc4, kEnd = 0xd9;
  const auto stands_alone = [](std::uint8_t kind) {
    return kind <= 1 || (kind >= 0xd0 && kind <= 0xd8);
  };
  for (std::size_t at = 2; at < bytes.size();) {
    if (bytes[at++] != kMarker) continue;
    while (at < bytes.size() && bytes[at] == kMarker) ++at;
    if (at == bytes.size() || bytes[at] == kEnd) return;
    const std::uint8_t kind = bytes[at++];
    if (stands_alone(kind)) continue;
    const std::size_t end = at + big_endian(bytes, at, 2);
    if (kind == kTables) {
      check_huffman_tables(bytes, at + 2, end);
    } else if (kind >= 0xc0 && kind <= 0xcf && kind != 0xc8 && kind != 0xcc) {
      check_jpeg_size(bytes, at);
    }
    at = std::max(end, at + 2);
  }
}

/// The contents of a PNG's chunks.
struct PngChunks {
  std::uint32_t depth = 0;
  std::uint32_t colour_type = 0;
  /// The palette's chunk with its length, type and checksum.
  std::size_t palette_at = 0;
  std::size_t palette_bytes = 0;
};

constexpr std::uint32_t kIndexedColour = 3;

// Throws ImageFault for a checksum that is wrong, which the decoder ignores.
PngChunks check_chunks(ImageBytes bytes) {
  constexpr std::size_t kSignature = 8, kAround = 12;
  PngChunks found;
  for (std::size_t at = kSignature;;) {
    const std::size_t length = big_endian(bytes, at, 4);
    const std::size_t end = at + kAround + length;
    const std::uint32_t checksum = big_endian(bytes, end - 4, 4);
    const std::string_view type(
        reinterpret_cast<const char*>(&bytes[at + 4]), 4);
    if (::crc32(0, &bytes[at + 4], static_cast<uInt>(length + 4)) != checksum) {
      throw ImageFault{
          format("the checksum of its chunk {} is wrong", printable(type))};
    }
    if (type == "IHDR") {
      require_image_size(
          big_endian(bytes, at + 8, 4), big_endian(bytes, at + 12, 4));
      found.depth = big_endian(bytes, at + 16, 1);
      found.colour_type = big_endian(bytes, at + 17, 1);
    } else if (type == "PLTE") {
      found.palette_at = at;
      found.palette_bytes = length;
    } else if (type == "IEND") {
      return found;
    }
    at = end;
  }
}

// The file with a palette of 256 colours, of which those that it lacks have
// this value.
std::vector<std::uint8_t> with_full_palette(
    ImageBytes bytes,
    const PngChunks& chunks,
    std::uint8_t value) {
  constexpr std::size_t kFull = 768, kHead = 8;
  std::vector<std::uint8_t> out(bytes.begin(), bytes.end());
  const auto palette =
      out.begin() + static_cast<std::ptrdiff_t>(chunks.palette_at);
  palette[2] = kFull >> 8U;
  palette[3] = kFull & 0xffU;
  out.insert(
      palette + static_cast<std::ptrdiff_t>(kHead + chunks.palette_bytes),
      kFull - chunks.palette_bytes,
      value);
  return out;
}

/// The first frame of a GIF.
struct GifFrame {
  /// Position of its transparency flags, if it has any.
  std::optional<std::size_t> transparency = std::nullopt;
  bool covers_image = false;
};

GifFrame find_frame(ImageBytes bytes) {
  constexpr std::uint32_t kExtension = 0x21, kImage = 0x2c, kControl = 0xf9;
  const auto table_bytes = [](std::uint32_t flags) -> std::size_t {
    return (flags & 0x80U) != 0 ? std::size_t{6} << (flags & 7U) : 0;
  };
  GifFrame frame;
  std::size_t at = 13 + table_bytes(little_endian(bytes, 10, 1));
  while (true) {
    const std::uint32_t kind = little_endian(bytes, at, 1);
    if (kind == kImage) {
      frame.covers_image = little_endian(bytes, at + 1, 4) == 0 &&
          little_endian(bytes, at + 5, 4) == little_endian(bytes, 6, 4);
      return frame;
    }
    if (kind != kExtension) throw ImageFault{"its blocks are damaged"};
    const bool is_control = little_endian(bytes, at + 1, 1) == kControl;
    if (is_control && (little_endian(bytes, at + 3, 1) & 1U) != 0)
      frame.transparency = at + 3;
    at += 2;
    while (const std::uint32_t size = little_endian(bytes, at, 1))
      at += size + 1;
    ++at;
  }
}

bool is_opaque(const DecodedImage& pixels) {
  for (std::size_t i = 3; i < pixels.values.size(); i += 4) {
    if (pixels.values[i] != 255) return false;
  }
  return true;
}

/// The header of a BMP.
struct BmpHeader {
  std::uint32_t pixels_at, header_bytes, depth, compression, num_colours;
  std::int64_t width, height;
};

BmpHeader bmp_header(ImageBytes bytes) {
  constexpr std::uint32_t kOldHeader = 12;
  BmpHeader header{};
  header.pixels_at = little_endian(bytes, 10, 4);
  header.header_bytes = little_endian(bytes, 14, 4);
  if (header.header_bytes == kOldHeader) {
    header.width = little_endian(bytes, 18, 2);
    header.height = little_endian(bytes, 20, 2);
    header.depth = little_endian(bytes, 24, 2);
    return header;
  }
  header.width = static_cast<std::int32_t>(little_endian(bytes, 18, 4));
  header.height = std::abs(
      std::int64_t{static_cast<std::int32_t>(little_endian(bytes, 22, 4))});
  header.depth = little_endian(bytes, 28, 2);
  header.compression = little_endian(bytes, 30, 4);
  header.num_colours = little_endian(bytes, 46, 4);
  return header;
}

// Throws ImageFault for pixels whose colour is not in the palette.
void check_colours(ImageBytes bytes, const BmpHeader& header) {
  const std::size_t entry = header.header_bytes == 12 ? 3 : 4;
  const std::uint32_t most = 1U << header.depth;
  const std::size_t room =
      (std::max(header.pixels_at, 14 + header.header_bytes) - 14 -
       header.header_bytes) /
      entry;
  const std::size_t num_colours = std::min<std::size_t>(
      room, header.num_colours == 0 ? most : header.num_colours);
  if (num_colours >= most) return;
  const auto width = static_cast<std::size_t>(header.width);
  const std::size_t row_bytes = (width * header.depth + 31) / 32 * 4;
  const std::size_t per_byte = 8 / header.depth;
  for (std::size_t y = 0; y < static_cast<std::size_t>(header.height); ++y) {
    for (std::size_t x = 0; x < width; ++x) {
      const std::uint32_t packed = little_endian(
          bytes, header.pixels_at + y * row_bytes + x / per_byte, 1);
      const std::size_t shift =
          8 - header.depth * (static_cast<std::uint32_t>(x % per_byte) + 1);
      if ((packed >> shift & (most - 1)) >= num_colours)
        throw ImageFault{"it has colours that its palette lacks"};
    }
  }
}

}  // namespace

DecodedImage decode_jpeg(ImageBytes bytes) {
  check_segments(bytes);
  return decode_with_stb(bytes, "JPEG");
}

DecodedImage decode_png(ImageBytes bytes) {
  const PngChunks chunks = check_chunks(bytes);
  if (chunks.depth == 16 && chunks.colour_type == 0)
    throw ImageFault{std::string(kWideGrey)};
  const bool lacks_colours = chunks.colour_type == kIndexedColour &&
      chunks.palette_bytes > 0 && chunks.depth <= 8 &&
      chunks.palette_bytes < (std::size_t{3} << chunks.depth);
  if (!lacks_colours) return decode_with_stb(bytes, "PNG");
  DecodedImage pixels =
      decode_with_stb(with_full_palette(bytes, chunks, 0), "PNG");
  const DecodedImage other =
      decode_with_stb(with_full_palette(bytes, chunks, 255), "PNG");
  if (pixels.values != other.values)
    throw ImageFault{"it has colours that its palette lacks"};
  return pixels;
}

DecodedImage decode_gif(ImageBytes bytes) {
  constexpr std::size_t kBackground = 11;
  const GifFrame frame = find_frame(bytes);
  if (!frame.covers_image) {
    throw ImageFault{
        "its first frame does not cover the image; convert it to PNG"};
  }
  std::vector<std::uint8_t> changed(bytes.begin(), bytes.end());
  changed[kBackground] = 0;
  // The decoder drops the colours of transparent pixels.
  if (frame.transparency)
    changed[*frame.transparency] &= static_cast<std::uint8_t>(~1U);
  DecodedImage pixels = decode_with_stb(changed, "GIF");
  if (!is_opaque(pixels)) throw_truncated();
  if (!frame.transparency) return pixels;
  changed[*frame.transparency] |= 1U;
  const DecodedImage transparent = decode_with_stb(changed, "GIF");
  for (std::size_t i = 3; i < pixels.values.size(); i += 4)
    pixels.values[i] = transparent.values[i];
  return pixels;
}

DecodedImage decode_bmp(ImageBytes bytes) {
  constexpr std::uint32_t kPlain = 0, kMasks = 3;
  const BmpHeader header = bmp_header(bytes);
  require_image_size(header.width, header.height);
  const bool is_known = header.depth == 1 || header.depth == 4 ||
      header.depth == 8 || header.depth == 24 || header.depth == 32;
  if (!is_known) {
    throw ImageFault{format("as BMP: it has {} bits per pixel", header.depth)};
  }
  if (header.compression != kPlain &&
      (header.compression != kMasks || header.depth != 32))
    throw ImageFault{"as BMP: it is compressed"};
  if (header.depth <= 8) check_colours(bytes, header);
  DecodedImage pixels = decode_with_stb(bytes, "BMP");
  // Without masks the fourth byte means nothing.
  const bool has_alpha = header.compression == kMasks;
  return has_alpha ? pixels : with_channels(std::move(pixels), 3);
}

DecodedImage decode_psd(ImageBytes bytes) {
  const std::uint32_t num_channels = big_endian(bytes, 12, 2);
  if (num_channels != 3 || big_endian(bytes, 22, 2) != 8) {
    throw ImageFault{
        "as PSD: only three channels of 8 bits are read; convert it to PNG"};
  }
  return with_channels(decode_with_stb(bytes, "PSD"), 3);
}

DecodedImage decode_tga(ImageBytes bytes) {
  const std::uint32_t kind = little_endian(bytes, 2, 1);
  const std::uint32_t pixel_bits = little_endian(bytes, 16, 1);
  const std::uint32_t palette_bits = little_endian(bytes, 7, 1);
  // Grey images may have 8 bits of transparency.
  const bool is_grey = kind == 3 || kind == 11;
  for (const std::uint32_t bits : {is_grey ? 0 : pixel_bits, palette_bits}) {
    if (bits == 15 || bits == 16)
      throw ImageFault{format("as TGA: it has colours of {} bits", bits)};
  }
  return decode_with_stb(bytes, "TGA");
}

}  // namespace accelerate::detail
