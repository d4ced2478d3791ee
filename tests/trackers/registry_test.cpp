#include "trackers/registry.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "trackers/recorded_cases.h"

namespace accelerate {
namespace {
namespace registry_test {

using ::testing::ElementsAre;
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

// "custom" stands for a tracker that the program has made.
std::vector<LogWith> recorded_log_with(const nlohmann::ordered_json& json) {
  std::vector<LogWith> log_with;
  const auto add = [&](const std::string& name) {
    if (name == "custom") {
      log_with.emplace_back(std::make_shared<Custom>());
    } else {
      log_with.emplace_back(name);
    }
  };
  if (json.is_string()) add(json);
  if (json.is_array())
    for (const auto& each : json) add(each);
  return log_with;
}

TEST(FilterTrackers, ChoosesWhatAccelerateChose) {
  const auto cases = testing::recorded_cases("filter");
  ASSERT_FALSE(cases.empty());
  for (const auto& recorded : cases) {
    SCOPED_TRACE(recorded.at("id"));
    const auto& input = recorded.at("input");
    const auto installed =
        input.at("installed").get<std::vector<std::string>>();
    const auto call = [&] {
      return filter(
          recorded_log_with(input.at("log_with")),
          input.at("logging_dir").is_null()
              ? ""
              : input.at("logging_dir").get<std::string>(),
          [&](const detail::TrackerClass& each) {
            return std::find(installed.begin(), installed.end(), each.name) !=
                installed.end();
          });
    };
    const auto& expected = recorded.at("expected");
    // With "all", Accelerate does not ask for a directory, and trackers that
    // need none are not affected.
    if (expected.contains("error")) {
      testing::expect_error<ConfigError>(call, expected.at("message"));
    } else {
      EXPECT_EQ(
          call(), expected.at("trackers").get<std::vector<std::string>>());
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
      [] { filter({std::shared_ptr<GeneralTracker>()}); }, "null pointer");
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

TEST(RegisterTrackerClass, RefusesWhatIsNoClass) {
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
