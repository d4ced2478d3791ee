#include "support/tensorboard_record.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <regex>
#include <span>
#include <string>

#include "oracle/digests.h"
#include "support/tensorboard_reader.h"

namespace accelerate::testing {

namespace {

using nlohmann::json;

json recorded_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

json recorded_image(const TensorboardImage& image) {
  const DecodedImage decoded = decode_image(image.file);
  return {
      {"height", image.height},
      {"width", image.width},
      {"colorspace", image.colorspace},
      {"pixels_shape", {decoded.height, decoded.width, decoded.channels}},
      {"pixels_fnv1a64",
       oracle::fnv1a64(std::as_bytes(std::span(decoded.bytes)))}};
}

void add_hparams(json& event, const std::string& content) {
  TensorboardHparams record = read_tensorboard_hparams(content);
  event["hparams"] = record.kind;
  if (record.kind == "experiment") {
    std::sort(record.infos.begin(), record.infos.end());
    event["infos"] = record.infos;
    if (record.infos.empty()) event["infos"] = json::array();
  } else if (record.kind == "session_start_info") {
    event["values"] = json::object();
    for (const auto& [name, value] : record.values) {
      json& shown = event["values"][name];
      std::visit([&](const auto& each) { shown = each; }, value);
    }
  } else {
    event["status"] = record.status;
  }
}

json recorded_value(const TensorboardValue& value, std::int64_t step) {
  json event{{"step", step}, {"tag", value.tag}};
  if (value.scalar) event["scalar"] = recorded_number(*value.scalar);
  if (value.image) event["image"] = recorded_image(*value.image);
  if (value.plugin == "hparams") {
    add_hparams(event, value.plugin_content);
  } else if (!value.tensor_texts.empty()) {
    event["plugin"] = value.plugin;
    event["text"] = value.tensor_texts;
  }
  return event;
}

json recorded_events(const std::filesystem::path& path) {
  json result = json::array();
  for (const TensorboardEvent& event : read_tensorboard_events(path)) {
    if (!event.file_version.empty())
      result.push_back({{"file_version", event.file_version}});
    for (const TensorboardValue& value : event.values)
      result.push_back(recorded_value(value, event.step));
  }
  return result;
}

std::string recorded_path(const std::string& path) {
  static const std::regex file_name("events\\.out\\.tfevents\\..*");
  static const std::regex time("(^|/)[0-9]{9,}(\\.[0-9]+)?/");
  return std::regex_replace(
      std::regex_replace(path, file_name, "events.out.tfevents.*"),
      time,
      "$1<time>/");
}

}  // namespace

json recorded_tensorboard_files(const std::filesystem::path& directory) {
  std::vector<std::pair<std::string, json>> files;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const std::string path = recorded_path(
        std::filesystem::relative(entry.path(), directory).generic_string());
    json content;
    if (path.ends_with("tfevents.*")) {
      content["events"] = recorded_events(entry.path());
    } else {
      std::ifstream file(entry.path(), std::ios::binary);
      content["text"] = std::string(
          std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>());
    }
    files.emplace_back(path, std::move(content));
  }
  std::sort(files.begin(), files.end());
  json result = json::array();
  for (auto& [path, content] : files)
    result.push_back(json::array({path, std::move(content)}));
  return result;
}

}  // namespace accelerate::testing
