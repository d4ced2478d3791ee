#include "data/images/stb_decoder.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/text/text.h"

// Compiles the decoder into this file only. Memory that it does not write is
// zero.
#define STBI_MALLOC(size) std::calloc(1, size)
#define STBI_REALLOC(memory, size) std::realloc(memory, size)
#define STBI_FREE(memory) std::free(memory)
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_NO_PIC
#define STBI_NO_PNM
#define STBI_NO_STDIO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wshadow"
#include <stb_image.h>
#pragma GCC diagnostic pop

namespace accelerate::detail {

namespace {

/// Gives the decoder a file, and notices if it wants more than there is.
class WatchedBytes {
 public:
  explicit WatchedBytes(ImageBytes bytes) : bytes_(bytes) {}

  static stbi_io_callbacks callbacks() {
    return {
        .read =
            [](void* self, char* out, int size) {
              return static_cast<WatchedBytes*>(self)->read(out, size);
            },
        .skip = [](void* self,
                   int size) { static_cast<WatchedBytes*>(self)->skip(size); },
        .eof =
            [](void* self) {
              return static_cast<WatchedBytes*>(self)->left() == 0 ? 1 : 0;
            }};
  }
  [[nodiscard]] bool were_too_few() const { return were_too_few_; }

 private:
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }
  int read(char* out, int size) {
    // The decoder fills its buffer, which it does first of all, as far as the
    // file goes, but needs all of what it reads elsewhere.
    if (buffer_ == nullptr) buffer_ = out;
    const std::size_t count = std::min(left(), static_cast<std::size_t>(size));
    const bool is_enough =
        out == buffer_ ? count > 0 : count == static_cast<std::size_t>(size);
    were_too_few_ = were_too_few_ || !is_enough;
    std::memcpy(out, bytes_.data() + at_, count);
    at_ += count;
    return static_cast<int>(count);
  }
  void skip(int size) {
    // Negative sizes go back.
    const auto to = static_cast<std::ptrdiff_t>(at_) + size;
    const auto end = static_cast<std::ptrdiff_t>(bytes_.size());
    were_too_few_ = were_too_few_ || to < 0 || to > end;
    at_ = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(to, 0, end));
  }

  ImageBytes bytes_;
  std::size_t at_ = 0;
  const char* buffer_ = nullptr;
  bool were_too_few_ = false;
};

}  // namespace

DecodedImage decode_with_stb(ImageBytes bytes, std::string_view format_name) {
  const stbi_io_callbacks callbacks = WatchedBytes::callbacks();
  const auto fail = [&](std::string_view reason) {
    throw ImageFault{format("as {}: {}", format_name, reason)};
  };
  DecodedImage pixels;
  WatchedBytes header(bytes);
  if (stbi_info_from_callbacks(
          &callbacks,
          &header,
          &pixels.width,
          &pixels.height,
          &pixels.channels) == 0)
    fail(header.were_too_few() ? "truncated" : stbi_failure_reason());
  // That of a BMP may be negative here.
  pixels.height = std::abs(pixels.height);
  require_image_size(pixels.width, pixels.height);
  WatchedBytes file(bytes);
  const std::unique_ptr<stbi_uc, void (*)(void*)> values(
      stbi_load_from_callbacks(
          &callbacks,
          &file,
          &pixels.width,
          &pixels.height,
          &pixels.channels,
          0),
      stbi_image_free);
  if (file.were_too_few()) fail("truncated");
  if (!values) fail(stbi_failure_reason());
  const std::size_t count = static_cast<std::size_t>(pixels.width) *
      static_cast<std::size_t>(pixels.height) *
      static_cast<std::size_t>(pixels.channels);
  pixels.values.assign(values.get(), values.get() + count);
  return pixels;
}

}  // namespace accelerate::detail
