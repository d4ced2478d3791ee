#include "data/datasets/text_file.h"

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

TextFile::TextFile(const std::string& path) : mapping_(path), file_(path) {
  text_ = {
      reinterpret_cast<const char*>(mapping_.bytes().data()),
      mapping_.bytes().size()};
  // Since it was mapped, its name may refer to another file.
  if (file_.size() < text_.size())
    throw Error(format("[data] {} changed while it was opened", path));
  if (text_.starts_with("\xff\xfe") || text_.starts_with("\xfe\xff")) {
    throw ConfigError(format(
        "[data] {} must be UTF-8, but is UTF-16; convert it: "
        "iconv -f UTF-16 -t UTF-8",
        path));
  }
  if (text_.starts_with(kByteOrderMark))
    text_.remove_prefix(kByteOrderMark.size());
}

std::string_view TextFile::text() const {
  file_.require_size();
  return text_;
}

std::int64_t TextFile::line_at(std::size_t offset) const {
  std::int64_t line = 1;
  for (std::size_t i = 0; i < offset;) {
    const std::size_t end = line_end_at(text_, i);
    if (end > 0) ++line;
    i += end > 0 ? end : 1;
  }
  return line;
}

std::size_t line_end_at(std::string_view text, std::size_t offset) {
  if (offset >= text.size()) return 0;
  if (text[offset] == '\n') return 1;
  if (text[offset] != '\r') return 0;
  return offset + 1 < text.size() && text[offset + 1] == '\n' ? 2 : 1;
}

}  // namespace accelerate::detail
