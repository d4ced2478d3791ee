#include "data/images/stb_decoder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

/// The memory of one decoding, freed at its end even if an exception leaves the
/// decoder, which is written in C. It begins as zeros.
class DecoderMemory {
 public:
  DecoderMemory() : outer_(std::exchange(current_, this)) {}
  ~DecoderMemory() {
    current_ = outer_;
    for (void* const block : blocks_) std::free(block);
  }
  DecoderMemory(const DecoderMemory&) = delete;
  DecoderMemory& operator=(const DecoderMemory&) = delete;

  static void* allocate(std::size_t size) {
    return current_->keep(std::calloc(1, size));
  }
  static void* resize(void* block, std::size_t size) {
    void* const moved = std::realloc(block, size);
    if (moved == nullptr) return nullptr;  // `block` is still there
    current_->blocks_.erase(block);
    return current_->keep(moved);
  }
  static void release(void* block) {
    current_->blocks_.erase(block);
    std::free(block);
  }

 private:
  void* keep(void* block) {
    if (block != nullptr) blocks_.insert(block);
    return block;
  }

  // Decoding runs on one thread, and the decoder passes nothing on to malloc.
  static thread_local DecoderMemory* current_;
  DecoderMemory* outer_;
  std::unordered_set<void*> blocks_;
};

thread_local DecoderMemory* DecoderMemory::current_ = nullptr;

}  // namespace

}  // namespace accelerate::detail

// Compiles the decoder into this file only.
#define STBI_MALLOC(size) accelerate::detail::DecoderMemory::allocate(size)
#define STBI_REALLOC(block, size) \
  accelerate::detail::DecoderMemory::resize(block, size)
#define STBI_FREE(block) accelerate::detail::DecoderMemory::release(block)
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

/// Feeds the decoder a file, and throws ImageFault if it reads beyond the end:
/// it would continue with zeros, for as many pixels as the file announces.
class WatchedBytes {
 public:
  WatchedBytes(ImageBytes bytes, std::string_view format_name)
      : bytes_(bytes), format_name_(format_name) {}

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

 private:
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }
  int read(char* out, int size) {
    // The decoder first fills its buffer, as far as the file goes, but needs
    // all of what it reads elsewhere.
    if (buffer_ == nullptr) buffer_ = out;
    const std::size_t count = std::min(left(), static_cast<std::size_t>(size));
    const bool is_enough =
        out == buffer_ ? count > 0 : count == static_cast<std::size_t>(size);
    if (!is_enough) throw_truncated();
    std::memcpy(out, bytes_.data() + at_, count);
    at_ += count;
    return static_cast<int>(count);
  }
  void skip(int size) {
    // Negative sizes go back.
    const auto to = static_cast<std::ptrdiff_t>(at_) + size;
    const auto end = static_cast<std::ptrdiff_t>(bytes_.size());
    if (to < 0 || to > end) throw_truncated();
    at_ = static_cast<std::size_t>(to);
  }
  [[noreturn]] void throw_truncated() const {
    throw ImageFault{format("as {}: truncated", format_name_)};
  }

  ImageBytes bytes_;
  std::string_view format_name_;
  std::size_t at_ = 0;
  const char* buffer_ = nullptr;
};

}  // namespace

DecodedImage decode_with_stb(ImageBytes bytes, std::string_view format_name) {
  const stbi_io_callbacks callbacks = WatchedBytes::callbacks();
  DecoderMemory memory;
  const auto fail = [&] {
    throw ImageFault{format("as {}: {}", format_name, stbi_failure_reason())};
  };
  DecodedImage image;
  WatchedBytes header(bytes, format_name);
  if (stbi_info_from_callbacks(
          &callbacks, &header, &image.width, &image.height, &image.channels) ==
      0)
    fail();
  // The height of a BMP may be negative here.
  image.height = std::abs(image.height);
  require_image_size(image.width, image.height);
  WatchedBytes file(bytes, format_name);
  const stbi_uc* const values = stbi_load_from_callbacks(
      &callbacks, &file, &image.width, &image.height, &image.channels, 0);
  if (values == nullptr) fail();
  const std::size_t count = static_cast<std::size_t>(image.width) *
      static_cast<std::size_t>(image.height) *
      static_cast<std::size_t>(image.channels);
  image.values.assign(values, values + count);
  return image;
}

}  // namespace accelerate::detail
