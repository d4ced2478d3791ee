#pragma once

#include <string_view>

#include "data/images/decoded_image.h"

namespace accelerate::detail {

/// Decodes a file with the stb_image library. Throws ImageFault if it cannot, or
/// read beyond the end of the file. `format_name` is for the
/// message.
DecodedImage decode_with_stb(ImageBytes bytes, std::string_view format_name);

}  // namespace accelerate::detail
