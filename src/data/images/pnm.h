#pragma once

#include "data/images/decoded_image.h"

namespace accelerate::detail {

/// Decodes a binary PGM or PPM file (P5, P6) as Pillow does: values are scaled
/// from the file's largest value to 255. Throws ImageFault for the other PNM
/// formats, for grey images of 16 bits, and for files that end early.
DecodedImage decode_pnm(ImageBytes bytes);

}  // namespace accelerate::detail
