#include <cmath>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "support/temporary_directory.h"
#include "support/tensorboard_record.h"
#include "trackers/recorded_calls.h"
#include "trackers/tracker_request.h"

// What torch.utils.tensorboard wrote for Accelerate, recorded, and what we
// write.

namespace accelerate {
namespace {
namespace tensorboard_recorded_test {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json recorded_cases() {
  std::ifstream file(ACCELERATE_ORACLE_DATA "/trackers.json");
  const ordered_json topic = ordered_json::parse(file);
  ordered_json cases = ordered_json::array();
  for (const auto& each : topic.at("cases")) {
    if (each.at("input").at("kind") == "tensorboard") cases.push_back(each);
  }
  return cases;
}

/// Where two values differ by more than numbers may; empty if nowhere.
std::string difference(
    const json& found,
    const json& expected,
    double tolerance,
    const std::string& place = "") {
  if (found.is_number() && expected.is_number()) {
    const double least = expected.get<double>();
    const double distance = std::abs(found.get<double>() - least);
    if (distance <= tolerance * std::abs(least)) return "";
  } else if (
      found.type() == expected.type() && found.is_structured() &&
      found.size() == expected.size()) {
    auto other = expected.begin();
    for (auto each = found.begin(); each != found.end(); ++each, ++other) {
      const std::string name = found.is_object() ? each.key() : "";
      if (found.is_object() && each.key() != other.key()) break;
      const std::string inner =
          difference(*each, *other, tolerance, place + "/" + name);
      if (!inner.empty()) return inner;
    }
    if (other == expected.end()) return "";
  } else if (found == expected) {
    return "";
  }
  return place + ": " + found.dump() + " instead of " + expected.dump();
}

void expect_as_recorded(const ordered_json& recorded) {
  const ordered_json& input = recorded.at("input");
  const testing::TemporaryDirectory project;
  detail::TrackerRequest request;
  request.project_name = input.at("project");
  request.logging_dir =
      input.at("logging_dir") ? project / "logs" : project.path();
  request.begin = 1'700'000'000.25;
  std::string failure;
  try {
    const auto tracker = detail::make_tensorboard(request);
    testing::make_recorded_calls(*tracker, input);
  } catch (const ConfigError& error) {
    failure = error.what();
  }
  const ordered_json& expected = recorded.at("expected");
  const json files = json::parse(expected.at("files").dump());
  EXPECT_EQ(
      difference(
          testing::recorded_tensorboard_files(project.path()), files, 1e-6),
      "");
  if (expected.at("failure").is_null()) {
    EXPECT_EQ(failure, "");
  } else {
    const std::string message = expected.at("failure").at("message");
    EXPECT_NE(failure.find(message), std::string::npos) << failure;
  }
}

TEST(RecordedTensorboard, FilesHoldWhatPythonWrote) {
  const ordered_json cases = recorded_cases();
  EXPECT_FALSE(cases.empty());
  for (const ordered_json& recorded : cases) {
    SCOPED_TRACE(recorded.at("id"));
    expect_as_recorded(recorded);
  }
}

}  // namespace tensorboard_recorded_test
}  // namespace
}  // namespace accelerate
