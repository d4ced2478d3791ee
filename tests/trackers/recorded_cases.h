#pragma once

#include <fstream>
#include <string_view>

#include <nlohmann/json.hpp>

namespace accelerate::testing {

/// The oracle's cases of the topic "trackers" and this kind.
inline nlohmann::ordered_json recorded_cases(std::string_view kind) {
  std::ifstream file(ACCELERATE_ORACLE_DATA "/trackers.json");
  const auto topic = nlohmann::ordered_json::parse(file);
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  for (const auto& each : topic.at("cases")) {
    if (each.at("input").at("kind") == kind) cases.push_back(each);
  }
  return cases;
}

}  // namespace accelerate::testing
