#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

// Reads event files by the definitions of TFRecord and TensorBoard's messages,
// and shares no code with the library's writer.

namespace accelerate::testing {

struct TensorboardImage {
  std::int32_t height = 0;
  std::int32_t width = 0;
  std::int32_t colorspace = 0;
  std::string file;
};

struct TensorboardHistogram {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

/// A summary's value. Fields that the file does not have are empty.
struct TensorboardValue {
  std::string tag;
  std::string plugin;
  std::string plugin_content;
  std::optional<float> scalar;
  std::optional<TensorboardImage> image;
  std::optional<TensorboardHistogram> histogram;
  std::vector<double> tensor_numbers;
  std::vector<std::string> tensor_texts;
};

struct TensorboardEvent {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version;
  bool is_session_start = false;
  std::vector<TensorboardValue> values;
};

/// Throws std::runtime_error if a checksum is wrong or the file ends within a
/// frame.
std::vector<TensorboardEvent> read_tensorboard_events(
    const std::filesystem::path& path);

/// One of the three records of the hparams plugin.
struct TensorboardHparams {
  /// "experiment", "session_start_info" or "session_end_info".
  std::string kind;
  /// Names and types of an experiment.
  std::vector<std::pair<std::string, std::string>> infos;
  /// Values of a session's start.
  std::vector<std::pair<std::string, std::variant<double, std::string>>> values;
  double start_seconds = 0;
  std::int32_t status = 0;
};

TensorboardHparams read_tensorboard_hparams(const std::string& plugin_content);

struct DecodedImage {
  int height = 0;
  int width = 0;
  int channels = 0;
  std::string bytes;
};

/// Throws std::runtime_error if `file` is not an image.
DecodedImage decode_image(const std::string& file);

}  // namespace accelerate::testing
