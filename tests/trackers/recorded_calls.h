#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

namespace accelerate::testing {

/// A value of the oracle's topic "trackers". Where numbers are meant, "inf",
/// "-inf" and "nan" are numbers.
inline TrackedValue tracked_value(const nlohmann::ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_array()) {
    TrackedValue::List list;
    for (const auto& each : value) list.push_back(tracked_value(each));
    return list;
  }
  if (value.is_object()) {
    TrackedValue::Map map;
    for (const auto& [name, each] : value.items())
      map.push_back({name, tracked_value(each)});
    return map;
  }
  if (!value.is_string()) return {};
  const std::string text = value.get<std::string>();
  if (text == "inf" || text == "-inf" || text == "nan") return std::stod(text);
  return text;
}

inline TrackedValues tracked_values(const nlohmann::ordered_json& values) {
  TrackedValues result;
  for (const auto& [name, each] : values.items())
    result.push_back({name, tracked_value(each)});
  return result;
}

/// The images of a call of log_images. What was recorded says nothing of the
/// order of the sizes, which some packages take as it comes.
inline TrackedImages recorded_images(
    const nlohmann::ordered_json& call,
    const std::string& layout = "NCHW") {
  TrackedImages images;
  images.shape = call.at("shape").get<std::vector<std::int64_t>>();
  images.layout = layout;
  images.is_float = call.at("dtype") == "float32";
  std::int64_t num_values = 1;
  for (const std::int64_t size : images.shape) num_values *= size;
  const std::int64_t seed = call.at("seed");
  for (std::int64_t i = 0; i < num_values; ++i) {
    const auto byte = static_cast<unsigned char>((7 * i + 13 * seed) % 256);
    const float value = static_cast<float>(byte) / 255.0F;
    if (images.is_float) {
      images.values.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      images.values += static_cast<char>(byte);
    }
  }
  return images;
}

/// Starts the tracker and makes the case's calls, one a second.
inline void make_recorded_calls(
    GeneralTracker& tracker,
    const nlohmann::ordered_json& input,
    const std::string& layout = "NCHW") {
  tracker.start();
  if (!input.at("config").is_null())
    tracker.store_init_configuration(tracked_values(input.at("config")));
  LogTime time{.step = std::nullopt, .seconds = 1'700'000'000.0};
  for (const auto& call : input.at("calls")) {
    time.seconds += 1;
    time.step.reset();
    if (!call.at("step").is_null()) time.step = call.at("step");
    if (call.at("call") == "log") {
      tracker.log(tracked_values(call.at("values")), time, {});
    } else {
      tracker.log_images(call.at("key"), recorded_images(call, layout), time, {});
    }
  }
  tracker.finish();
}

}  // namespace accelerate::testing
