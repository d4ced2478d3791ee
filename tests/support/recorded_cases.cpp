#include "support/recorded_cases.h"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "support/tracker_case.h"

namespace accelerate::testing {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

std::string difference_at(
    const std::string& place,
    const json& found,
    const json& expected) {
  constexpr double kTolerance = 1e-6;
  if (found.is_number() && expected.is_number()) {
    const double number = expected.get<double>();
    const double distance = std::abs(found.get<double>() - number);
    if (distance <= kTolerance * std::abs(number)) return "";
  } else if (
      found.type() == expected.type() && found.is_structured() &&
      found.size() == expected.size()) {
    auto other = expected.begin();
    for (auto each = found.begin(); each != found.end(); ++each, ++other) {
      if (found.is_object() && each.key() != other.key()) break;
      const std::string name = found.is_object() ? each.key() : "";
      const std::string inner =
          difference_at(place + "/" + name, *each, *other);
      if (!inner.empty()) return inner;
    }
    if (other == expected.end()) return "";
  } else if (found == expected) {
    return "";
  }
  return place + ": " + found.dump() + " instead of " + expected.dump();
}

// An outcome's failure is null, or has a text that ours must also have.
void expect_failure(const json& found, const json& expected) {
  if (!expected.is_object()) {
    EXPECT_EQ(found, expected);
    return;
  }
  const std::string text = found.is_object() ? found.value("error", "") : "";
  EXPECT_NE(text.find(expected.at("message").get<std::string>()), text.npos)
      << found.dump() << " instead of " << expected.dump();
}

}  // namespace

ordered_json recorded_cases(std::string_view kind) {
  std::ifstream file(ACCELERATE_ORACLE_DATA "/trackers.json");
  const auto topic = ordered_json::parse(file);
  ordered_json cases = ordered_json::array();
  for (const auto& each : topic.at("cases")) {
    if (each.at("input").at("kind") == kind) cases.push_back(each);
  }
  return cases;
}

std::string difference(const json& found, const json& expected) {
  return difference_at("", found, expected);
}

void expect_recorded_outcomes(std::string_view kind, std::size_t count) {
  const ordered_json cases = recorded_cases(kind);
  EXPECT_EQ(cases.size(), count);
  for (const ordered_json& recorded : cases) {
    SCOPED_TRACE(recorded.at("id"));
    json found = play_on_tracker(recorded.at("input"));
    json expected = recorded.at("expected");
    expect_failure(found.at("failure"), expected.at("failure"));
    found.erase("failure");
    expected.erase("failure");
    EXPECT_EQ(difference(found, expected), "");
  }
}

}  // namespace accelerate::testing
