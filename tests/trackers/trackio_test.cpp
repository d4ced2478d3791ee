#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "trackers/database.h"
#include "trackers/tracker_request.h"

namespace accelerate {
namespace {
namespace trackio_test {

using detail::Database;
using detail::DatabaseRow;
using nlohmann::json;
using testing::expect_error;

class Trackio : public ::testing::Test {
 protected:
  std::unique_ptr<GeneralTracker> started(TrackedValues init_kwargs = {}) {
    detail::TrackerRequest request;
    request.project_name = "my project!";
    request.begin = 1700000000.25;
    request.init_kwargs = std::move(init_kwargs);
    request.environment.set("TRACKIO_DIR", directory_.path().string());
    auto tracker = detail::make_trackio(request);
    tracker->start();
    return tracker;
  }
  std::vector<DatabaseRow> rows(const std::string& statement) {
    return Database(directory_ / "myproject.db").query(statement);
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(Trackio, HasWhatWasLogged) {
  const auto tracker = started({{"name", "first"}, {"group", "g"}});
  tracker->store_init_configuration({{"lr", 0.5}});
  tracker->log(
      {{"a", 1}, {"b", INFINITY}, {"c", TrackedValues{{"d", std::nan("")}}}},
      {.step = 4, .seconds = 1700000001.5},
      {});
  tracker->log({{"text", "x"}}, {.step = std::nullopt, .seconds = 0}, {});
  tracker->finish();
  EXPECT_EQ(
      rows("SELECT run_name, step, timestamp, metrics FROM metrics"),
      (std::vector<DatabaseRow>{
          {"first",
           4,
           "2023-11-14T22:13:21.500000+00:00",
           R"({"a": 1, "b": "Infinity", "c": {"d": "NaN"}})"},
          {"first",
           5,
           "1970-01-01T00:00:00.000000+00:00",
           R"({"text": "x"})"}}));
  const auto configs = rows("SELECT config FROM configs");
  ASSERT_EQ(configs.size(), 1U);
  EXPECT_EQ(
      json::parse(std::get<std::string>(configs[0][0])),
      json::parse(R"({"lr": 0.5, "_Username": null, "_Group": "g",
                      "_Created": "2023-11-14T22:13:20.250000+00:00"})"));
}

TEST_F(Trackio, RunsHaveRowsOfTheirOwnUnlessTheyAreResumed) {
  for (const char* const resume : {"never", "never", "allow", "must"}) {
    const auto tracker = started({{"name", "r"}, {"resume", resume}});
    tracker->log({{"a", 1}}, {}, {});
    tracker->finish();
  }
  EXPECT_EQ(
      rows("SELECT count(*), max(step) FROM metrics GROUP BY run_id "
           "ORDER BY count(*)"),
      (std::vector<DatabaseRow>{{1, 0}, {3, 2}}));
  expect_error<ConfigError>(
      [&] { started({{"name", "none"}, {"resume", "must"}}); },
      "has no run \"none\" to resume");
  expect_error<ConfigError>(
      [&] { started({{"resume", "yes"}}); }, "it is never, allow or must");
}

TEST_F(Trackio, RefusesTablesOfAnEarlierVersion) {
  Database(directory_ / "myproject.db")
      .run(
          "CREATE TABLE metrics (run_id TEXT, timestamp TEXT, step INTEGER, "
          "log_id TEXT)");
  expect_error<Error>([&] { started(); }, "myproject.db");
}

}  // namespace trackio_test
}  // namespace
}  // namespace accelerate
