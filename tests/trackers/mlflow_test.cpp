#include <any>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/mlflow_record.h"
#include "support/recorded_cases.h"
#include "support/temporary_directory.h"
#include "trackers/mlflow/mlflow_store.h"
#include "trackers/tracker_request.h"

namespace accelerate {
namespace {
namespace mlflow_test {

namespace fs = std::filesystem;
using detail::read_file;
using nlohmann::json;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Mlflow : public ::testing::Test {
 protected:
  void SetUp() override {
    environment_.set("MLFLOW_TRACKING_URI", (directory_ / "mlruns").string());
  }
  std::unique_ptr<GeneralTracker> make(TrackedValues init_kwargs = {}) {
    detail::TrackerRequest request;
    request.project_name = "p";
    request.begin = 1700000000.5;
    request.init_kwargs = std::move(init_kwargs);
    request.environment = environment_;
    request.warn = [this](const std::string& text) {
      warnings_.push_back(text);
    };
    return detail::make_mlflow(request);
  }
  std::unique_ptr<GeneralTracker> started(TrackedValues init_kwargs = {}) {
    auto tracker = make(std::move(init_kwargs));
    tracker->start();
    return tracker;
  }
  json experiments() {
    return testing::recorded_mlflow_experiments(directory_ / "mlruns");
  }
  json run() { return experiments().at(0).at("runs").at(0); }
  fs::path directory_of_run(const std::string& id) {
    for (const auto& each : fs::directory_iterator(directory_ / "mlruns")) {
      if (fs::exists(each.path() / id)) return each.path() / id;
    }
    return {};
  }

  testing::TemporaryDirectory directory_;
  detail::Environment environment_;
  std::vector<std::string> warnings_;
};

TEST_F(Mlflow, WritesWhatPythonWrote) {
  testing::expect_recorded_outcomes("mlflow", 21);
}

TEST_F(Mlflow, DescribesTheRun) {
  const auto tracker = started({{"run_name", "first"}});
  const auto id = std::any_cast<std::string>(tracker->tracker());
  EXPECT_EQ(id.size(), 32U);
  const fs::path directory = directory_of_run(id);
  YAML::Node meta = YAML::LoadFile(directory / "meta.yaml");
  EXPECT_EQ(meta["status"].as<int>(), 1);
  EXPECT_TRUE(meta["end_time"].IsNull());
  EXPECT_EQ(meta["start_time"].as<long>(), 1700000000500);
  EXPECT_EQ(
      meta["artifact_uri"].as<std::string>(),
      "file://" + (directory / "artifacts").string());
  EXPECT_EQ(read_file(directory / "tags/mlflow.runName"), "first");
  tracker->finish();
  meta = YAML::LoadFile(directory / "meta.yaml");
  EXPECT_EQ(meta["status"].as<int>(), 3);
  EXPECT_GT(meta["end_time"].as<long>(), 1700000000500);
}

TEST_F(Mlflow, MetricsAreVisibleAfterFlush) {
  const auto tracker = started();
  const auto directory =
      directory_of_run(std::any_cast<std::string>(tracker->tracker()));
  tracker->log(
      {{"train/loss", 0.5}, {"x", std::nan("")}},
      {.step = 3, .seconds = 1700000001.25},
      {});
  EXPECT_FALSE(fs::exists(directory / "metrics/x"));
  tracker->flush();
  EXPECT_EQ(
      read_file(directory / "metrics/train/loss"), "1700000001250 0.5 3\n");
  EXPECT_EQ(read_file(directory / "metrics/x"), "1700000001250 nan 3\n");
}

TEST_F(Mlflow, VariablesWinOverArguments) {
  environment_.set("MLFLOW_EXPERIMENT_NAME", "other");
  environment_.set("MLFLOW_TAGS", R"({"a": "env", "n": 1})");
  environment_.set("MLFLOW_NESTED_RUN", "1");
  started({{"tags", TrackedValues{{"a", "argument"}}}})->finish();
  EXPECT_EQ(experiments().at(0).at("name"), "other");
  EXPECT_EQ(run().at("tags"), json::parse(R"({"a": "env", "n": "1"})"));
}

TEST_F(Mlflow, ResumesARun) {
  const auto first = started({{"run_name", "one"}});
  const auto id = std::any_cast<std::string>(first->tracker());
  first->store_init_configuration({{"lr", 0.1}});
  first->log({{"a", 1}}, {.step = 1}, {});
  first->finish();
  environment_.set("MLFLOW_RUN_ID", id);
  const auto second = started({{"description", "more"}, {"run_id", "ignored"}});
  second->log({{"a", 2}}, {.step = 2}, {});
  second->finish();
  EXPECT_EQ(experiments().at(0).at("runs").size(), 1U);
  EXPECT_EQ(run().at("metrics").at("a").dump(), R"([["1.0",1],["2.0",2]])");
  EXPECT_EQ(run().at("run_name"), "one");
  EXPECT_EQ(run().at("tags").at("mlflow.note.content"), "more");
  environment_.set("MLFLOW_RUN_ID", "0123");
  expect_error<ConfigError>([&] { started(); }, "there is no MLflow run 0123");
}

TEST_F(Mlflow, KeepsParametersOfAResumedRun) {
  const auto first = started();
  first->store_init_configuration({{"lr", 0.1}});
  environment_.set(
      "MLFLOW_RUN_ID", std::any_cast<std::string>(first->tracker()));
  first->finish();
  const auto second = started();
  expect_error<Error>(
      [&] { second->store_init_configuration({{"lr", 0.2}, {"n", 1}}); },
      "does not change parameters of a run: lr of run");
  EXPECT_EQ(run().at("params"), json::parse(R"({"lr": "0.1", "n": "1"})"));
}

TEST_F(Mlflow, FindsTheExperimentOfThatName) {
  started()->finish();
  started()->finish();
  EXPECT_EQ(experiments().size(), 1U);
  EXPECT_EQ(experiments().at(0).at("runs").size(), 2U);
}

TEST_F(Mlflow, DropsParametersThatAreTooLong) {
  const auto tracker = started();
  tracker->store_init_configuration(
      {{"just", std::string(6000, 'x')}, {"long", std::string(6001, 'x')}});
  tracker->finish();
  EXPECT_EQ(run().at("params").size(), 1U);
  EXPECT_THAT(
      warnings_,
      ElementsAre(HasSubstr("at most 6000 characters, but \"long\" has 6001")));
}

TEST_F(Mlflow, ManyParametersAndMetrics) {
  const auto tracker = started();
  TrackedValues values;
  for (int i = 0; i < 234; ++i) values.push_back({"p" + std::to_string(i), i});
  tracker->store_init_configuration(values);
  tracker->log(values, {.step = 1}, {});
  tracker->finish();
  EXPECT_EQ(run().at("params").size(), 234U);
  EXPECT_EQ(run().at("metrics").size(), 234U);
}

TEST_F(Mlflow, WarnsOnceAboutWhatMlflowRefuses) {
  const auto tracker = started();
  for (int i = 0; i < 2; ++i) {
    tracker->log(
        {{"text", "x"}, {"acc@5", 1}, {"../up", 1}, {"ok", 1}}, {}, {});
  }
  tracker->finish();
  EXPECT_EQ(warnings_.size(), 3U);
  EXPECT_EQ(run().at("metrics").size(), 1U);
}

TEST_F(Mlflow, ArtifactsImagesTablesAndFigures) {
  detail::replace_file(directory_ / "model" / "a" / "w", "weights");
  const auto tracker = started();
  const auto artifacts =
      directory_of_run(std::any_cast<std::string>(tracker->tracker())) /
      "artifacts";
  tracker->log_artifact((directory_ / "model").string(), "");
  tracker->log_artifact((directory_ / "model" / "a" / "w").string(), "best");
  tracker->log_figure("curves/roc", "<svg/>", {}, {});
  tracker->log_images(
      "x", {.shape = {1, 1}, .layout = "HW", .values = "a"}, {.step = 2}, {});
  tracker->log_table("t", {.columns = {"a", "b"}, .rows = {{1, "x"}}}, {}, {});
  EXPECT_EQ(read_file(artifacts / "model/a/w"), "weights");
  EXPECT_EQ(read_file(artifacts / "best/w"), "weights");
  EXPECT_EQ(read_file(artifacts / "curves/roc.svg"), "<svg/>");
  EXPECT_THAT(read_file(artifacts / "images/x/2.png"), HasSubstr("PNG"));
  EXPECT_EQ(
      json::parse(read_file(artifacts / "t.json")),
      json::parse(R"({"columns": ["a", "b"], "data": [[1.0, "x"]]})"));
  expect_error<Error>(
      [&] { tracker->log_figure("../f", "x", {}, {}); },
      "cannot be the name of a file");
}

TEST_F(Mlflow, ArtifactsGoToTheirLocation) {
  const auto tracker =
      started({{"logging_dir", (directory_ / "art").string()}});
  tracker->log_figure("f", "x", {}, {});
  const auto id = std::any_cast<std::string>(tracker->tracker());
  EXPECT_EQ(read_file(directory_ / "art" / id / "artifacts/f.svg"), "x");
}

TEST_F(Mlflow, RefusesWhatCannotBe) {
  expect_error<ConfigError>(
      [&] { make({{"tags", "[1]"}}); }, "must be a JSON object");
  expect_error<ConfigError>(
      [&] { make({{"tags", TrackedValues{{"a@", "x"}}}}); },
      "consist of letters");
  expect_error<ConfigError>(
      [&] { make({{"experiment", "x"}}); }, "have \"experiment\"");
  environment_.set("MLFLOW_TRACKING_URI", "databricks://profile");
  expect_error<ConfigError>(
      [&] { started(); }, "start \"mlflow server\" in front of another store");
}

TEST(MlflowKeys, AreThoseThatMlflowTakes) {
  for (const char* const good :
       {"loss", "train/loss", "odd name", "a.b-c:d", "\xc3\xa9", "..."}) {
    EXPECT_EQ(detail::complaint_about_mlflow_key(good), "") << good;
  }
  for (const std::string bad :
       {"", "/a", "a//b", "a/../b", "../a", ".", "a/", "a@b", "a\n"}) {
    EXPECT_NE(detail::complaint_about_mlflow_key(bad), "") << bad;
  }
  EXPECT_EQ(detail::num_characters("a\xc3\xa9"), 2U);
  EXPECT_EQ(detail::first_characters("a\xc3\xa9z", 2), "a\xc3\xa9");
}

TEST(MlflowUris, BecomePaths) {
  EXPECT_EQ(detail::path_of_uri("runs/here"), "runs/here");
  EXPECT_EQ(detail::path_of_uri("file:///a%20b/c"), "/a b/c");
  EXPECT_EQ(detail::path_of_uri("file:/a"), "/a");
  EXPECT_EQ(detail::path_of_uri("file://host/a"), "/a");
  EXPECT_EQ(detail::path_of_uri("s3://bucket/a"), "");
  EXPECT_EQ(detail::uri_of_path("/a b/\xc3\xa9"), "file:///a%20b/%C3%A9");
}

}  // namespace mlflow_test
}  // namespace
}  // namespace accelerate
