#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/tensorboard_reader.h"
#include "support/wandb_reader.h"
#include "trackers/media/sha256.h"
#include "trackers/tracker_request.h"
#include "trackers/wandb/wandb_settings.h"

namespace accelerate {
namespace {
namespace wandb_test {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

constexpr double kBegin = 1'700'000'000.25;

LogTime at(std::optional<std::int64_t> step, double after = 1) {
  return {.step = step, .seconds = kBegin + after};
}

class Wandb : public ::testing::Test {
 protected:
  Wandb() {
    request_.project_name = "project";
    request_.begin = kBegin;
    request_.environment.set("WANDB_DIR", directory_.path().string());
    request_.environment.set("WANDB_RUN_ID", "abc12345");
    request_.warn = [this](const std::string& line) {
      warnings_.push_back(line);
    };
  }

  std::unique_ptr<GeneralTracker> started() {
    auto made = detail::make_wandb(request_);
    made->start();
    return made;
  }
  [[nodiscard]] std::filesystem::path run() const {
    return directory_ / "wandb/latest-run";
  }
  [[nodiscard]] testing::WandbRun written(
      const std::string& run_id = "abc12345") const {
    return testing::read_wandb_run(run() / ("run-" + run_id + ".wandb"));
  }
  /// Returns the run's rows without times, after `log` and finish().
  std::vector<json> rows_of(const std::function<void(GeneralTracker&)>& log) {
    const auto made = started();
    log(*made);
    made->finish();
    std::vector<json> rows = written().history;
    for (json& row : rows) {
      row.erase("_timestamp");
      row.erase("_runtime");
    }
    return rows;
  }
  [[nodiscard]] std::string file(const std::string& path) const {
    return detail::read_file(run() / "files" / path);
  }

  testing::TemporaryDirectory directory_;
  detail::TrackerRequest request_;
  std::vector<std::string> warnings_;
};

TEST_F(Wandb, NamesTheRunAsItsArgumentsDo) {
  request_.init_kwargs = {
      {"name", "the name"},
      {"entity", "us"},
      {"group", "g"},
      {"job_type", "train"},
      {"notes", "some notes"},
      {"tags", TrackedValue::List{"a", "b"}},
      {"config", TrackedValues{{"x", TrackedValues{{"y", 1}}}}},
      {"id", "other"}};
  started()->finish();
  const testing::WandbRun found = written("other");
  EXPECT_EQ(found.run_id, "other");
  EXPECT_EQ(found.project, "project");
  EXPECT_EQ(found.entity, "us");
  EXPECT_EQ(found.name, "the name");
  EXPECT_EQ(found.group, "g");
  EXPECT_EQ(found.job_type, "train");
  EXPECT_EQ(found.notes, "some notes");
  EXPECT_THAT(found.tags, ElementsAre("a", "b"));
  EXPECT_EQ(found.config, json::parse(R"({"x": {"y": 1}})"));
  EXPECT_TRUE(found.has_ended);
}

TEST_F(Wandb, NamesTheRunAsItsVariablesDo) {
  request_.project_name = "";
  request_.environment.set("WANDB_PROJECT", "p");
  request_.environment.set("WANDB_ENTITY", "us");
  request_.environment.set("WANDB_NAME", "the name");
  request_.environment.set("WANDB_RUN_GROUP", "g");
  request_.environment.set("WANDB_JOB_TYPE", "train");
  request_.environment.set("WANDB_NOTES", "some notes");
  request_.environment.set("WANDB_TAGS", "a,b");
  started()->finish();
  const testing::WandbRun found = written();
  EXPECT_EQ(found.run_id, "abc12345");
  EXPECT_EQ(found.project, "p");
  EXPECT_EQ(found.entity, "us");
  EXPECT_EQ(found.name, "the name");
  EXPECT_EQ(found.group, "g");
  EXPECT_EQ(found.job_type, "train");
  EXPECT_EQ(found.notes, "some notes");
  EXPECT_THAT(found.tags, ElementsAre("a", "b"));
}

TEST_F(Wandb, PrefersArgumentsToVariables) {
  request_.environment.set("WANDB_PROJECT", "variable");
  request_.environment.set("WANDB_NAME", "variable");
  request_.init_kwargs = {{"name", "argument"}, {"notes", {}}};
  started()->finish();
  EXPECT_EQ(written().project, "project");
  EXPECT_EQ(written().name, "argument");
}

TEST_F(Wandb, PutsARunWhereWandbLooksForIt) {
  request_.environment.set("WANDB_RUN_ID", "");
  started()->finish();
  const std::string name =
      std::filesystem::read_symlink(run()).filename().string();
  EXPECT_THAT(
      name, MatchesRegex("offline-run-2023111[45]_[0-9]{6}-[0-9a-z]{8}"));
  EXPECT_TRUE(std::filesystem::exists(
      run() / ("run-" + name.substr(name.size() - 8) + ".wandb")));
}

TEST_F(Wandb, KeepsRunsOfOneSecondApart) {
  const auto first = started();
  const auto second = started();
  EXPECT_NE(
      std::any_cast<std::filesystem::path>(first->tracker()),
      std::any_cast<std::filesystem::path>(second->tracker()));
}

TEST_F(Wandb, MergesWhatIsLoggedForOneStep) {
  EXPECT_THAT(
      rows_of([](GeneralTracker& made) {
        made.log({{"a", 1}, {"n", TrackedValues{{"x", 1}}}}, at(4), {});
        made.log({{"b", 2}, {"n", TrackedValues{{"y", 2}}}}, at(4), {});
        made.log({{"a", 3}}, at(6), {});
      }),
      ElementsAre(
          json::parse(R"({"_step": 4, "a": 1, "b": 2, "n": {"x": 1, "y": 2}})"),
          json::parse(R"({"_step": 6, "a": 3})")));
}

TEST_F(Wandb, CountsStepsThatAreNotGiven) {
  EXPECT_THAT(
      rows_of([](GeneralTracker& made) {
        made.log({{"a", 1}}, at({}), {});
        made.log({{"a", 2}}, at({}), {});
        made.log({{"a", 3}}, at(7), {});
        made.log({{"b", 4}}, at({}), {});
        made.log({{"a", 5}}, at({}), {{"commit", false}});
        made.log({{"b", 6}}, at({}), {});
        made.log({{"a", 7}}, at(9), {{"commit", true}});
        made.log({{"a", 8}}, at({}), {});
      }),
      ElementsAre(
          json::parse(R"({"_step": 0, "a": 1})"),
          json::parse(R"({"_step": 1, "a": 2})"),
          json::parse(R"({"_step": 7, "a": 3, "b": 4})"),
          json::parse(R"({"_step": 8, "a": 5, "b": 6})"),
          json::parse(R"({"_step": 9, "a": 7})"),
          json::parse(R"({"_step": 10, "a": 8})")));
}

TEST_F(Wandb, LeavesOutWhatComesTooLate) {
  EXPECT_THAT(
      rows_of([](GeneralTracker& made) {
        made.log({{"a", 1}}, at(5), {});
        made.log({{"a", 2}}, at(4), {});
        made.log_images("i", {{1, 1}, "HW", false, "x"}, at(3), {});
        made.log({{"b", 3}}, at(5), {});
      }),
      ElementsAre(json::parse(R"({"_step": 5, "a": 1, "b": 3})")));
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(
      warnings_[0], HasSubstr("values of step 4 come after those of step 5"));
  EXPECT_THAT(written().files, IsEmpty());
}

TEST_F(Wandb, WritesEveryKindOfValue) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto rows = rows_of([](GeneralTracker& made) {
    made.log(
        {{"text", "a \"b\"\n\u00fc"},
         {"bytes", "\xff"},
         {"flag", true},
         {"none", {}},
         {"real", 0.1},
         {"whole", 1.0},
         {"large", std::int64_t{1} << 60},
         {"list", TrackedValue::List{1, "x", {}}},
         {"empty", TrackedValues{}},
         {"inf", kInfinity},
         {"minus", -kInfinity},
         {"nan", std::numeric_limits<double>::quiet_NaN()}},
        at(0),
        {});
  });
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0], json::parse(R"({"_step": 0, "text": "a \"b\"\n\u00fc",
        "bytes": "\ufffd", "flag": true, "none": null, "real": 0.1,
        "whole": 1.0, "large": 1152921504606846976, "list": [1, "x", null],
        "empty": {}, "inf": "Infinity", "minus": "-Infinity", "nan": "NaN"})"));
}

TEST_F(Wandb, KeepsTheLastValuesAsTheSummary) {
  const auto made = started();
  made->log({{"a", 1}, {"b", 2}}, at(0, 1), {});
  made->log({{"a", 3}}, at(1, 2.5), {});
  made->log({{"a", 4}}, at(2, 4), {});
  made->flush();
  // The last step is not complete yet.
  EXPECT_EQ(json::parse(file("wandb-summary.json")).at("a"), 3);
  EXPECT_EQ(written().history.size(), 2U);
  made->finish();
  const json expected{
      {"a", 4},
      {"b", 2},
      {"_step", 2},
      {"_timestamp", kBegin + 4},
      {"_runtime", 4},
      {"_wandb", {{"runtime", 4}}}};
  EXPECT_EQ(written().summary, expected);
  EXPECT_EQ(json::parse(file("wandb-summary.json")), expected);
}

TEST_F(Wandb, UpdatesTheConfiguration) {
  request_.init_kwargs = {
      {"config", TrackedValues{{"lr", 0.5}, {"epochs", 3}}}};
  const auto made = started();
  made->store_init_configuration(
      {{"lr", 1e-5}, {"list", TrackedValue::List{1, 2}}});
  made->finish();
  EXPECT_EQ(
      written().config,
      json::parse(R"({"lr": 1e-05, "epochs": 3, "list": [1, 2]})"));
  EXPECT_EQ(
      file("config.yaml"),
      "_wandb:\n  value: {}\nepochs:\n  value: 3\nlist:\n  value:\n  - 1\n"
      "  - 2\nlr:\n  value: 1.0e-05\n");
}

TEST_F(Wandb, WritesImagesWithCaptions) {
  const TrackedImages images{{2, 1, 2, 3}, "NHWC", false, "abcdefghijkl"};
  const auto rows = rows_of([&](GeneralTracker& made) {
    made.log_images(
        "val/out",
        images,
        at(3),
        {{"caption", TrackedValue::List{"first", "second"}}});
  });
  const json& value = rows.at(0).at("val/out");
  EXPECT_EQ(value.at("_type"), "images/separated");
  EXPECT_EQ(value.at("count"), 2);
  EXPECT_EQ(value.at("width"), 2);
  EXPECT_EQ(value.at("height"), 1);
  EXPECT_EQ(value.at("captions"), json({"first", "second"}));
  ASSERT_EQ(value.at("filenames").size(), 2U);
  const std::string second = value.at("filenames").at(1);
  const std::string content = file(second);
  EXPECT_EQ(testing::decode_image(content).bytes, "ghijkl");
  EXPECT_EQ(
      second,
      "media/images/val/out_3_" + detail::sha256_digits(content).substr(0, 20) +
          ".png");
  EXPECT_EQ(json(written().files), value.at("filenames"));
}

TEST_F(Wandb, RefusesCaptionsThatAreTooFew) {
  const auto made = started();
  testing::expect_error<Error>(
      [&] {
        made->log_images(
            "x", {{2, 1, 1}, "NHW", false, "ab"}, at(0), {{"caption", "one"}});
      },
      "there must be one caption per image, but there are 1 for 2 images of "
      "\"x\"");
}

TEST_F(Wandb, WritesTablesHistogramsAndFigures) {
  TrackedHistogram histogram;
  histogram.edges = {0, 1, 2};
  histogram.counts = {3, 4};
  const auto rows = rows_of([&](GeneralTracker& made) {
    made.log_table("t", {{"a", "b"}, {{1, "x"}, {{}, 0.5}}}, at(0), {});
    made.log_histogram("h", histogram, at(0), {});
    made.log_figure("f", "<svg/>", at(0), {});
  });
  const json& table = rows.at(0).at("t");
  EXPECT_EQ(table.at("_type"), "table-file");
  EXPECT_EQ(table.at("ncols"), 2);
  EXPECT_EQ(table.at("nrows"), 2);
  EXPECT_EQ(
      file(table.at("path")),
      R"({"columns":["a","b"],"data":[[1,"x"],[null,0.5]]})");
  EXPECT_EQ(
      rows.at(0).at("h"),
      json::parse(
          R"({"_type": "histogram", "values": [3.0, 4.0],
              "bins": [0.0, 1.0, 2.0]})"));
  const json& figure = rows.at(0).at("f");
  EXPECT_EQ(figure.at("_type"), "html-file");
  EXPECT_EQ(figure.at("size"), 6);
  EXPECT_EQ(figure.at("sha256"), detail::sha256_digits("<svg/>"));
  EXPECT_EQ(file(figure.at("path")), "<svg/>");
}

TEST_F(Wandb, KeepsFilesOfTheRunInItsDirectory) {
  rows_of([](GeneralTracker& made) {
    made.log_figure("../../../up", "<svg/>", at(0), {});
  });
  ASSERT_EQ(written().files.size(), 1U);
  EXPECT_THAT(
      written().files[0], ::testing::StartsWith("media/html/_/_/_/up_0_"));
}

TEST_F(Wandb, CopiesArtifacts) {
  detail::replace_file(directory_ / "model/weights", "12");
  detail::replace_file(directory_ / "one.txt", "34");
  const auto made = started();
  EXPECT_TRUE(made->log_artifact((directory_ / "model").string(), "kept"));
  EXPECT_TRUE(made->log_artifact((directory_ / "one.txt").string(), ""));
  made->finish();
  EXPECT_THAT(written().files, ElementsAre("kept/model/weights", "one.txt"));
  EXPECT_EQ(file("kept/model/weights"), "12");
  EXPECT_EQ(file("one.txt"), "34");
}

TEST_F(Wandb, DoesNothingWhenDisabled) {
  for (const char* variable : {"WANDB_MODE", "WANDB_DISABLED"}) {
    SCOPED_TRACE(variable);
    detail::TrackerRequest request = request_;
    request.environment.set(
        variable, variable == std::string("WANDB_MODE") ? "disabled" : "true");
    const auto made = detail::make_wandb(request);
    made->start();
    made->log({{"a", 1}}, at(0), {});
    EXPECT_TRUE(made->log_images("x", {{1, 1}, "HW", false, "x"}, at(0), {}));
    made->finish();
    EXPECT_FALSE(std::filesystem::exists(directory_ / "wandb"));
  }
}

TEST_F(Wandb, SaysWhetherTheServerIsWanted) {
  EXPECT_FALSE(detail::wandb_wants_online(request_));
  request_.environment.set("WANDB_MODE", "online");
  EXPECT_TRUE(detail::wandb_wants_online(request_));
  request_.init_kwargs = {{"mode", "offline"}, {"only_in_python", 1}};
  EXPECT_FALSE(detail::wandb_wants_online(request_));
  request_.init_kwargs = {{"mode", "sometimes"}};
  testing::expect_error<ConfigError>(
      [&] { detail::make_wandb(request_); },
      "the mode must be offline, online or disabled, but is \"sometimes\"");
}

TEST_F(Wandb, RefusesNamesThatWandbRefuses) {
  request_.init_kwargs = {{"id", "a/b"}};
  testing::expect_error<ConfigError>(
      [&] { detail::make_wandb(request_); }, "around it, but is \"a/b\"");
  request_.init_kwargs = {{"project", "a:b"}};
  testing::expect_error<ConfigError>(
      [&] { detail::make_wandb(request_); }, "around it, but is \"a:b\"");
  request_.init_kwargs = {{"reinit", true}};
  testing::expect_error<ConfigError>(
      [&] { detail::make_wandb(request_); },
      "wandb's init_kwargs have \"reinit\"; there are project, entity, name, "
      "id, group, job_type, tags, notes, config, dir, mode, resume");
  request_.init_kwargs = {{"tags", TrackedValue::List{1}}};
  testing::expect_error<ConfigError>(
      [&] { detail::make_wandb(request_); }, "must be a list of strings");
}

TEST_F(Wandb, WarnsThatOfflineRunsAreNotResumed) {
  request_.init_kwargs = {{"resume", "allow"}};
  started()->finish();
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(warnings_[0], HasSubstr("resumes runs only online"));
}

}  // namespace wandb_test
}  // namespace
}  // namespace accelerate
