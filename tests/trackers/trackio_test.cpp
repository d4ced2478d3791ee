#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "trackers/files/database.h"
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

TEST_F(Trackio, HasImagesTablesHistogramsAndFigures) {
  const auto tracker = started({{"name", "r"}});
  const LogTime time{.step = 4, .seconds = 0};
  const TrackedImages two{
      .shape = {2, 1, 1, 1}, .layout = "NHWC", .values = "ab"};
  EXPECT_TRUE(tracker->log_images("x", two, time, {}));
  EXPECT_TRUE(tracker->log_table(
      "t", {.columns = {"a", "b"}, .rows = {{1, "x"}, {NAN, {}}}}, time, {}));
  EXPECT_TRUE(tracker->log_histogram(
      "h", {.edges = {0, 0.5, 2}, .counts = {3, 1}}, time, {}));
  EXPECT_TRUE(tracker->log_figure("f", "<svg/>", time, {}));
  tracker->finish();
  const auto found = rows("SELECT metrics FROM metrics WHERE step = 4");
  ASSERT_EQ(found.size(), 4U);
  const auto value = [&](std::size_t row, const char* name) {
    return json::parse(std::get<std::string>(found[row][0])).at(name);
  };
  const auto file = [&](const json& media) {
    const std::string path = media.at("file_path");
    EXPECT_EQ(path.find("myproject/r/4/"), 0U) << path;
    return detail::read_file(directory_ / "media" / path);
  };
  for (const char* const name : {"x/0", "x/1"}) {
    EXPECT_EQ(value(0, name).at("_type"), "trackio.image");
    EXPECT_EQ(file(value(0, name)).substr(1, 3), "PNG");
  }
  EXPECT_EQ(value(1, "t"), json::parse(R"({"_type": "trackio.table",
      "_value": [{"a": 1, "b": "x"}, {"a": "NaN", "b": null}]})"));
  EXPECT_EQ(value(2, "h"), json::parse(R"({"_type": "trackio.histogram",
      "bins": [0.0, 0.5, 2.0], "values": [3.0, 1.0]})"));
  EXPECT_EQ(value(3, "f").at("_type"), "trackio.html");
  EXPECT_EQ(file(value(3, "f")), "<svg/>");
}

TEST_F(Trackio, MediaStayBelowTheirDirectory) {
  const auto tracker = started({{"name", "../../r"}});
  expect_error<Error>(
      [&] { tracker->log_figure("f", "<svg/>", {}, {}); },
      "cannot be the name of a file");
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
      [&] { started({{"resume", "yes"}}); }, "must be never, allow or must");
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
