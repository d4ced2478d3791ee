#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace accelerate {

/// Reads the image in a JPEG, PNG, BMP, GIF (first frame), TGA, PSD or PNM (P5,
/// P6) file: [channels, height, width] kByte. `channels`: 1 (grey), 3 or 4;
/// unset: as in the file. Pixels equal Pillow's, except for JPEG, where
/// decoders differ by a few units; as in Pillow, the orientation recorded by a
/// camera is not applied. Of colours of 16 bits, the high 8 are kept. Throws
/// Error if the file cannot be read, ConfigError with the reason if it cannot
/// be decoded: if it is truncated or damaged, or would lose values (grey of 16
/// bits).
[[nodiscard]] ACCELERATE_API at::Tensor read_image(
    const std::string& path,
    std::optional<int> channels = std::nullopt);

struct ImageFolderOptions {
  /// Height and width to which images are resized (bilinear, with
  /// antialiasing). Unset: unchanged; they can then be batched only if all have
  /// the same size.
  std::optional<std::pair<std::int64_t, std::int64_t>> size = std::nullopt;
  /// 3: RGB; 1: grey; 4: with alpha.
  int channels = 3;
  /// Transforms the image, [channels, height, width] kByte after resizing, with
  /// the sample's own random generator. Unset: kFloat from 0 to 1.
  std::function<at::Tensor(at::Tensor image, at::Generator& generator)>
      transform = nullptr;
};

/// Images in one directory per class. A sample is a tuple of the image and its
/// class, a 0-d kLong. As in torchvision, classes are all directories,
/// including hidden ones, and are numbered in the order of their names; files
/// are in the order of their directories and names; files that are not named as
/// images are skipped. Images are decoded when they are read: use workers.
class ACCELERATE_API ImageFolder {
 public:
  /// Throws Error if the directory cannot be read, ConfigError naming class
  /// directories without images, or images that cannot be decoded (TIFF, WebP).
  explicit ImageFolder(
      const std::string& path,
      ImageFolderOptions options = {});

  /// Number of images.
  [[nodiscard]] std::int64_t size() const {
    return static_cast<std::int64_t>(files_.size());
  }
  /// The image, [channels, height, width], and its label, a 0-d kLong. Throws
  /// as read_image() does. Several threads can call it, each with a generator
  /// of its own.
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor> get(
      std::int64_t index,
      at::Generator& generator) const;
  /// Names of the classes by label.
  [[nodiscard]] const std::vector<std::string>& classes() const {
    return classes_;
  }
  /// The file of an image.
  [[nodiscard]] const std::string& path(std::int64_t index) const;
  /// The label of an image.
  [[nodiscard]] std::int64_t label(std::int64_t index) const;

 private:
  struct File {
    std::string path;
    std::int64_t label;
  };
  [[nodiscard]] const File& at(std::int64_t index) const;

  ImageFolderOptions options_;
  std::vector<std::string> classes_;
  std::vector<File> files_;
};

}  // namespace accelerate
