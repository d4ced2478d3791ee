#include "oracle/departures.h"

#include <utility>

namespace accelerate::oracle {

Departures::Departures(
    std::vector<PythonOnlyField> fields,
    std::vector<Departure> departures) {
  for (PythonOnlyField& field : fields) fields_.push_back({field});
  for (Departure& departure : departures) departures_.push_back({departure});
}

std::vector<Departures::Counted<PythonOnlyField>*> Departures::leave_out(
    const Json& input,
    Json& expected) {
  if (fields_.empty()) return {};
  const std::string owner = input.contains("handler")
      ? input.at("handler").get<std::string>()
      : input.value("plugin", "");
  std::vector<Counted<PythonOnlyField>*> used;
  for (Counted<PythonOnlyField>& field : fields_) {
    if (field.rule.owner != owner) continue;
    std::size_t erased = 0;
    for (Json& part : expected) {
      if (part.is_object()) erased += part.erase(std::string(field.rule.name));
    }
    if (erased > 0) used.push_back(&field);
  }
  return used;
}

std::optional<std::string> Departures::difference_from(
    const Json& recorded,
    const Json& input,
    const Json& found,
    const Tolerance& tolerance) {
  Json expected = recorded;
  const auto left_out = leave_out(input, expected);
  auto differs = difference(found, expected, tolerance);
  if (differs) {
    std::vector<Counted<Departure>*> applied;
    for (Counted<Departure>& departure : departures_) {
      if (departure.rule.apply(input, found, expected))
        applied.push_back(&departure);
    }
    if (applied.empty()) return differs;
    differs = difference(found, expected, tolerance);
    if (differs) return differs;
    for (Counted<Departure>* departure : applied) ++departure->uses;
  }
  for (Counted<PythonOnlyField>* field : left_out) ++field->uses;
  return std::nullopt;
}

std::string Departures::report() const {
  std::string text;
  for (const auto& [field, uses] : fields_) {
    text += "  left out: " + std::string(field.owner) + "." +
        std::string(field.name) + ", " + std::string(field.reason) + ": " +
        std::to_string(uses) + " times\n";
  }
  for (const auto& [departure, uses] : departures_) {
    text += "  by decision: " + std::string(departure.decision) + ": " +
        std::to_string(uses) + " times\n";
  }
  return text;
}

Departures departures_of(const std::string& topic) {
  if (topic == "plugins") return plugin_departures();
  if (topic == "big_model_dispatch") return big_model_dispatch_departures();
  if (topic == "device_map") return device_map_departures();
  if (topic == "fp8") return fp8_departures();
  if (topic == "quantization") return quantization_departures();
  if (topic == "parallelism") return parallelism_departures();
  if (topic == "tp_pp") return tp_pp_departures();
  return Departures();
}

}  // namespace accelerate::oracle
