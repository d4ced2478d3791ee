#pragma once

#include <string_view>

#include "data/images/decoded_image.h"

namespace accelerate::detail {

/// The fault of images whose values do not fit into bytes.
inline constexpr std::string_view kWideGrey =
    "it is a grey image of 16 bits per pixel, of which only 8 would be kept; "
    "convert it to 8 bits";

/// Decode files after checks of their own, since the decoder would accept
/// damaged ones, or decode some differently from Pillow.
DecodedImage decode_jpeg(ImageBytes bytes);
DecodedImage decode_png(ImageBytes bytes);
DecodedImage decode_gif(ImageBytes bytes);
DecodedImage decode_bmp(ImageBytes bytes);
DecodedImage decode_psd(ImageBytes bytes);
DecodedImage decode_tga(ImageBytes bytes);
/// Decodes a binary PGM or PPM file (P5, P6) as Pillow does: values are scaled
/// from the file's largest value to 255. Throws ImageFault for the other PNM
/// formats, for grey images of 16 bits, and for files that end early.
DecodedImage decode_pnm(ImageBytes bytes);

}  // namespace accelerate::detail
