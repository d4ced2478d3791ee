#pragma once

#include <string>
#include <string_view>

#include "base/files/files.h"
#include "data/datasets/open_file.h"

namespace accelerate::detail {

inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// A memory-mapped file of UTF-8 text.
class TextFile {
 public:
  /// Throws Error if the file cannot be read, ConfigError if it is UTF-16.
  explicit TextFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  /// The contents, without a byte order mark. Throws Error if the file has
  /// become shorter.
  [[nodiscard]] std::string_view text() const;
  /// The number, from 1, of the line that an offset in text() is in. Lines end
  /// with LF, CR LF or CR.
  [[nodiscard]] std::int64_t line_at(std::size_t offset) const;

 private:
  MappedFile mapping_;
  OpenFile file_;
  std::string_view text_;
};

/// The number of bytes in the line end at `offset`: 2 for CR LF, 0 if there is
/// none.
std::size_t line_end_at(std::string_view text, std::size_t offset);

}  // namespace accelerate::detail
