#pragma once

#include <string_view>

namespace accelerate::detail {

/// The files of src/kernels/cuda, embedded when the library is built.
struct SourceTexts {
  std::string_view prelude;
  std::string_view float8_formats;
  std::string_view float8_amax;
  std::string_view float8_tile;
  std::string_view float8_rows;
  std::string_view float8_blocks;
  std::string_view cross_entropy;
  std::string_view bias_activation;
  std::string_view add_norm;
  std::string_view rotary;
};
SourceTexts source_texts();

}  // namespace accelerate::detail
