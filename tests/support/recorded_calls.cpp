#include "support/recorded_calls.h"

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace accelerate::testing {

using nlohmann::json;
using nlohmann::ordered_json;

TrackedValue tracked_value(const ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_array()) {
    TrackedValue::List list;
    for (const auto& each : value) list.push_back(tracked_value(each));
    return list;
  }
  if (value.is_object()) return tracked_values(value);
  if (!value.is_string()) return {};
  const std::string text = value.get<std::string>();
  if (text == "inf" || text == "-inf" || text == "nan") return std::stod(text);
  return text;
}

TrackedValues tracked_values(const ordered_json& values) {
  TrackedValues result;
  if (values.is_null()) return result;
  for (const auto& [name, each] : values.items())
    result.push_back({name, tracked_value(each)});
  return result;
}

json recorded_json(const TrackedValue& value) {
  return std::visit(
      [](const auto& content) -> json {
        using Content = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Content, TrackedValue::List>) {
          json list = json::array();
          for (const TrackedValue& each : content)
            list.push_back(recorded_json(each));
          return list;
        } else if constexpr (std::is_same_v<Content, TrackedValue::Map>) {
          json object = json::object();
          for (const NamedValue& each : content)
            object[each.name] = recorded_json(each.value);
          return object;
        } else if constexpr (std::is_same_v<Content, double>) {
          if (std::isnan(content)) return "nan";
          if (std::isinf(content)) return content > 0 ? "inf" : "-inf";
          return content;
        } else {
          return content;
        }
      },
      value.content());
}

TrackedImages recorded_images(
    const ordered_json& call,
    const std::string& layout) {
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

LogTime recorded_time(const ordered_json& call) {
  LogTime time;
  if (!call.at("step").is_null()) time.step = call.at("step");
  return time;
}

void make_recorded_calls(
    GeneralTracker& tracker,
    const ordered_json& input,
    const std::string& layout) {
  tracker.start();
  if (!input.at("config").is_null())
    tracker.store_init_configuration(tracked_values(input.at("config")));
  double seconds = 1'700'000'000.0;
  for (const auto& call : input.at("calls")) {
    LogTime time = recorded_time(call);
    time.seconds = ++seconds;
    if (call.at("call") == "log") {
      tracker.log(tracked_values(call.at("values")), time, {});
    } else {
      tracker.log_images(
          call.at("key"), recorded_images(call, layout), time, {});
    }
  }
  tracker.finish();
}

}  // namespace accelerate::testing
