#include "trackers/registry.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/recorded_cases.h"
#include "support/tracker_case.h"

namespace accelerate {
namespace {
namespace registry_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Custom final : public GeneralTracker {
 public:
  explicit Custom(std::string name = "custom") : name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }

 private:
  std::string name_;
};

const auto kEverything = [](const detail::TrackerClass&) { return true; };

std::vector<std::string> filter(
    const std::vector<LogWith>& log_with,
    const std::string& logging_dir = "logs",
    const detail::IsInstalled& is_installed = kEverything) {
  std::vector<std::string> names;
  for (const auto& each :
       detail::filter_trackers(log_with, logging_dir, is_installed))
    names.push_back(each.name);
  return names;
}

TEST(FilterTrackers, ChoosesWhatAccelerateChose) {
  const auto cases = testing::recorded_cases("filter");
  EXPECT_EQ(cases.size(), 23U);
  for (const auto& recorded : cases) {
    SCOPED_TRACE(recorded.at("id"));
    const nlohmann::json found = testing::choose_trackers(recorded.at("input"));
    const nlohmann::json expected = recorded.at("expected");
    if (expected.contains("error")) {
      EXPECT_THAT(
          found.value("error", ""),
          HasSubstr(expected.at("message").get<std::string>()));
    } else {
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(FilterTrackers, TakesEachTrackerOnce) {
  const auto one = std::make_shared<Custom>("one");
  EXPECT_THAT(
      filter({"dvclive", one, "dvclive", one, std::make_shared<Custom>("two")}),
      ElementsAre("dvclive", "one", "two"));
  EXPECT_THAT(filter({}), IsEmpty());
}

TEST(FilterTrackers, RefusesNullPointers) {
  testing::expect_error<ConfigError>(
      [] { filter({std::shared_ptr<GeneralTracker>()}); }, "null tracker");
}

TEST(RegisterTrackerClass, MakesTheNameKnown) {
  TrackerArguments seen;
  register_tracker_class(
      "registry_test",
      [&](const TrackerArguments& arguments) {
        seen = arguments;
        return std::make_shared<Custom>("registry_test");
      },
      {.requires_logging_directory = true});
  EXPECT_THAT(filter({"registry_test"}), ElementsAre("registry_test"));
  testing::expect_error<ConfigError>(
      [] { filter({"registry_test"}, ""); },
      "Logging with `registry_test` requires a `logging_dir`");
  detail::TrackerRequest request;
  request.project_name = "p";
  request.logging_dir = "logs";
  request.init_kwargs = {{"a", 1}};
  EXPECT_EQ(
      detail::find_tracker_class("registry_test")->make(request)->name(),
      "registry_test");
  EXPECT_EQ(seen.project_name, "p");
  EXPECT_EQ(seen.logging_dir, "logs");
  EXPECT_EQ(seen.init_kwargs, (TrackedValues{{"a", 1}}));
}

TEST(RegisterTrackerClass, ReplacesAClassOfTheName) {
  const auto factory = [](int number) {
    return [number](const TrackerArguments&) {
      return std::make_shared<Custom>("number " + std::to_string(number));
    };
  };
  register_tracker_class("replaced", factory(1));
  register_tracker_class("replaced", factory(2));
  EXPECT_EQ(
      detail::find_tracker_class("replaced")->make({})->name(), "number 2");
}

TEST(RegisterTrackerClass, RefusesInvalidRegistrations) {
  const TrackerFactory factory = [](const TrackerArguments&) {
    return std::make_shared<Custom>();
  };
  testing::expect_error<ConfigError>(
      [&] { register_tracker_class("", factory); }, "cannot be registered");
  testing::expect_error<ConfigError>(
      [&] { register_tracker_class("all", factory); }, "cannot be registered");
  testing::expect_error<ConfigError>(
      [] { register_tracker_class("empty", {}); }, "cannot be registered");
}

}  // namespace registry_test
}  // namespace
}  // namespace accelerate
