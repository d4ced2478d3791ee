#include <accelerate/image_folder.h>

#include <algorithm>
#include <array>
#include <climits>
#include <filesystem>
#include <memory>
#include <system_error>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

// Compiles the decoder into this file only.
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_NO_STDIO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wshadow"
#include <stb_image.h>
#pragma GCC diagnostic pop

namespace accelerate {

namespace {

using detail::format;
namespace fs = std::filesystem;

// Pillow's limit. A few bytes can announce far larger images.
constexpr std::int64_t kMostPixels = 178'956'970;

bool is_image(const fs::path& path) {
  constexpr std::array<std::string_view, 10> kEndings{
      ".jpg",
      ".jpeg",
      ".png",
      ".bmp",
      ".gif",
      ".tga",
      ".psd",
      ".pgm",
      ".ppm",
      ".pnm"};
  const std::string ending = detail::to_lower(path.extension().string());
  return std::find(kEndings.begin(), kEndings.end(), ending) != kEndings.end();
}

[[noreturn]] void throw_unreadable(
    const std::string& path,
    const std::error_code& code) {
  throw Error(format("[data] {} cannot be read: {}", path, code.message()));
}

std::vector<fs::path> sorted_entries(const std::string& path) {
  std::error_code code;
  std::vector<fs::path> entries;
  for (fs::directory_iterator i(path, code), end; !code && i != end;
       i.increment(code)) {
    entries.push_back(i->path());
  }
  if (code) throw_unreadable(path, code);
  std::sort(entries.begin(), entries.end());
  return entries;
}

void add_images(const fs::path& directory, std::vector<std::string>& found) {
  for (const fs::path& entry : sorted_entries(directory.string())) {
    if (fs::is_directory(entry)) {
      add_images(entry, found);
    } else if (is_image(entry)) {
      found.push_back(entry.string());
    }
  }
}

}  // namespace

at::Tensor read_image(const std::string& path, std::optional<int> channels) {
  if (channels && *channels != 1 && *channels != 3 && *channels != 4) {
    throw ConfigError(format(
        "[data] {} was asked for with {} channels; an image has 1, 3 or 4",
        path,
        *channels));
  }
  const detail::MappedFile file(path);
  if (file.bytes().size() > INT_MAX)
    throw ConfigError(format("[data] {} is too large for an image file", path));
  const auto* const bytes =
      reinterpret_cast<const stbi_uc*>(file.bytes().data());
  const auto size = static_cast<int>(file.bytes().size());
  int width = 0, height = 0, in_file = 0;
  if (stbi_info_from_memory(bytes, size, &width, &height, &in_file) != 0 &&
      static_cast<std::int64_t>(width) * height > kMostPixels) {
    throw ConfigError(format(
        "[data] {} announces {} by {} pixels; at most {} pixels are decoded",
        path,
        width,
        height,
        kMostPixels));
  }
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(
          bytes, size, &width, &height, &in_file, channels.value_or(0)),
      stbi_image_free);
  if (!pixels) {
    throw ConfigError(
        format("[data] {} cannot be decoded: {}", path, stbi_failure_reason()));
  }
  const at::Tensor interleaved = at::from_blob(
      pixels.get(), {height, width, channels.value_or(in_file)}, at::kByte);
  return interleaved.permute({2, 0, 1}).clone(at::MemoryFormat::Contiguous);
}

ImageFolder::ImageFolder(const std::string& path, ImageFolderOptions options)
    : options_(std::move(options)) {
  for (const fs::path& directory : sorted_entries(path)) {
    if (!fs::is_directory(directory)) continue;
    const auto label = static_cast<std::int64_t>(classes_.size());
    classes_.push_back(directory.filename().string());
    std::vector<std::string> images;
    add_images(directory, images);
    for (std::string& image : images)
      files_.push_back({std::move(image), label});
  }
  if (files_.empty()) {
    throw ConfigError(format(
        "[data] {} has no images in class directories; expected files such as "
        "{}/CLASS/IMAGE.png",
        path,
        path));
  }
}

const ImageFolder::File& ImageFolder::at(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw ConfigError(format(
        "[data] an ImageFolder has {} images and no image {}", size(), index));
  }
  return files_[static_cast<std::size_t>(index)];
}

const std::string& ImageFolder::path(std::int64_t index) const {
  return at(index).path;
}

std::int64_t ImageFolder::label(std::int64_t index) const {
  return at(index).label;
}

std::tuple<at::Tensor, at::Tensor> ImageFolder::get(
    std::int64_t index,
    at::Generator& generator) const {
  const File& file = at(index);
  at::Tensor image = read_image(file.path, options_.channels);
  if (options_.size) {
    const auto [height, width] = *options_.size;
    image = at::_upsample_bilinear2d_aa(
                image.unsqueeze(0).to(at::kFloat),
                {height, width},
                /*align_corners=*/false)
                .squeeze(0)
                .round_()
                .clamp_(0, 255)
                .to(at::kByte);
  }
  image = options_.transform ? options_.transform(std::move(image), generator)
                             : image.to(at::kFloat).div_(255);
  return {std::move(image), at::full({}, file.label, at::kLong)};
}

}  // namespace accelerate
