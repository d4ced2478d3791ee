#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// One file of src/kernels/cuda with values for its macros: a program.
struct KernelProgram {
  /// The file's name without `.cu`.
  std::string_view source;
  /// "NAME=VALUE".
  std::vector<std::string> definitions = {};

  /// The name in messages: "float8_tile (VALUE=BFloat16, FORMAT=E4m3)".
  [[nodiscard]] std::string text() const;
};

/// The complete text of a program's source. Throws InternalError if there is
/// none of that name.
std::string kernel_source(std::string_view name);

/// All programs that the library uses, and the entry points of each.
struct KnownProgram {
  KernelProgram program;
  std::vector<std::string_view> entries;
};
std::vector<KnownProgram> known_programs();

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
