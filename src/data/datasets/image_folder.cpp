#include <accelerate/image_folder.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <system_error>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

using detail::format;
namespace fs = std::filesystem;

constexpr std::array<std::string_view, 10> kRead{
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
// Images to torchvision, which this library cannot decode.
constexpr std::array<std::string_view, 3> kOthers{".tif", ".tiff", ".webp"};

bool ends_with_any(
    const std::string& name,
    std::span<const std::string_view> endings) {
  const std::string lower = detail::to_lower(name);
  return std::ranges::any_of(endings, [&](std::string_view ending) {
    return lower.ends_with(ending);
  });
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
  // Byte by byte, as Python sorts names.
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    return a.native() < b.native();
  });
  return entries;
}

bool names_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

void add_directories(const fs::path& directory, std::vector<fs::path>& found) {
  found.push_back(directory);
  for (const fs::path& entry : sorted_entries(directory.string())) {
    if (names_directory(entry)) add_directories(entry, found);
  }
}

// The images below a class's directory in torchvision's order: by directory,
// then by name.
std::vector<std::string> images_below(const fs::path& directory) {
  std::vector<fs::path> directories;
  add_directories(directory, directories);
  std::ranges::sort(directories, [](const auto& a, const auto& b) {
    return a.native() < b.native();
  });
  std::vector<std::string> images;
  for (const fs::path& each : directories) {
    for (const fs::path& entry : sorted_entries(each.string())) {
      if (names_directory(entry)) continue;
      const std::string name = entry.filename().string();
      if (ends_with_any(name, kOthers)) {
        throw ConfigError(format(
            "[data] {} cannot be decoded; convert it to PNG or JPEG, or move "
            "it out of the directory",
            entry.string()));
      }
      if (ends_with_any(name, kRead)) images.push_back(entry.string());
    }
  }
  return images;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& path, ImageFolderOptions options)
    : options_(std::move(options)) {
  std::vector<std::string> empty;
  for (const fs::path& directory : sorted_entries(path)) {
    if (!names_directory(directory)) continue;
    const auto label = static_cast<std::int64_t>(classes_.size());
    classes_.push_back(directory.filename().string());
    std::vector<std::string> images = images_below(directory);
    if (images.empty()) empty.push_back(classes_.back());
    for (std::string& image : images)
      files_.push_back({std::move(image), label});
  }
  if (files_.empty()) {
    throw ConfigError(format(
        "[data] {} must have images in class directories, such as "
        "{}/CLASS/IMAGE.png, but has none",
        path,
        path));
  }
  if (!empty.empty()) {
    throw ConfigError(format(
        "[data] {} has directories without images: {}; each would be a class, "
        "so remove them",
        path,
        detail::join(empty, ", ")));
  }
}

const ImageFolder::File& ImageFolder::at(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw ConfigError(format(
        "[data] an ImageFolder has {} images, but no image {}", size(), index));
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
