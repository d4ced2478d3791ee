#include <any>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/http_server.h"
#include "support/temporary_directory.h"
#include "trackers/files/database.h"
#include "trackers/mlflow/mlflow_store.h"
#include "trackers/tracker_request.h"

// MLflow stores other than directories.

namespace accelerate {
namespace {
namespace mlflow_stores_test {

using detail::Database;
using detail::DatabaseRow;
using detail::DatabaseValue;
using nlohmann::json;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::HttpServer;

std::unique_ptr<GeneralTracker> make(
    const detail::Environment& environment,
    TrackedValues init_kwargs = {}) {
  detail::TrackerRequest request;
  request.project_name = "p q";
  request.begin = 1700000000.5;
  request.init_kwargs = std::move(init_kwargs);
  request.environment = environment;
  return detail::make_mlflow(request);
}

class MlflowDatabase : public ::testing::Test {
 protected:
  std::unique_ptr<GeneralTracker> started(TrackedValues init_kwargs = {}) {
    environment_.set("MLFLOW_TRACKING_URI", "sqlite:///" + path().string());
    init_kwargs.push_back({"logging_dir", (directory_ / "art").string()});
    auto tracker = make(environment_, std::move(init_kwargs));
    tracker->start();
    return tracker;
  }
  std::filesystem::path path() { return directory_ / "a b.db"; }
  std::vector<DatabaseRow> rows(const std::string& statement) {
    return Database(path()).query(statement);
  }

  testing::TemporaryDirectory directory_;
  detail::Environment environment_;
};

TEST_F(MlflowDatabase, HasWhatWasLogged) {
  const auto tracker = started({{"run_name", "first"}});
  const auto id = std::any_cast<std::string>(tracker->tracker());
  tracker->store_init_configuration({{"lr", 1e-5}, {"amp", true}});
  const LogTime time{.step = 3, .seconds = 1700000001.25};
  tracker->log(
      {{"a", 0.5}, {"inf", INFINITY}, {"nan", std::nan("")}}, time, {});
  tracker->log({{"a", 0.25}}, {.step = 2, .seconds = 1700000002.25}, {});
  tracker->log_figure("f", "<svg/>", time, {});
  tracker->finish();
  const std::int64_t early = 1700000001250;
  const std::int64_t late = 1700000002250;
  const std::int64_t none = 0;
  EXPECT_EQ(
      rows("SELECT key, value, timestamp, step, is_nan FROM metrics"),
      (std::vector<DatabaseRow>{
          {"a", 0.5, early, 3, none},
          {"inf", 1.7976931348623157e308, early, 3, none},
          {"nan", 0.0, early, 3, 1},
          {"a", 0.25, late, 2, none}}));
  EXPECT_EQ(
      rows("SELECT value, step FROM latest_metrics WHERE key = 'a'"),
      (std::vector<DatabaseRow>{{0.5, 3}}));
  EXPECT_EQ(
      rows("SELECT key, value FROM params ORDER BY key"),
      (std::vector<DatabaseRow>{{"amp", "True"}, {"lr", "1e-05"}}));
  EXPECT_EQ(
      rows("SELECT run_uuid, name, status, start_time FROM runs"),
      (std::vector<DatabaseRow>{
          {id, "first", "FINISHED", std::int64_t{1700000000500}}}));
  EXPECT_EQ(
      rows("SELECT experiment_id, name FROM experiments"),
      (std::vector<DatabaseRow>{{0, "Default"}, {1, "p q"}}));
  EXPECT_EQ(
      detail::read_file(directory_ / "art" / id / "artifacts/f.svg"), "<svg/>");
}

TEST_F(MlflowDatabase, ResumesARunAndKeepsItsParameters) {
  const auto first = started();
  first->store_init_configuration({{"lr", 1}});
  environment_.set(
      "MLFLOW_RUN_ID", std::any_cast<std::string>(first->tracker()));
  first->finish();
  const auto second = started({{"tags", TrackedValues{{"t", "x"}}}});
  expect_error<Error>(
      [&] { second->store_init_configuration({{"lr", 2}}); },
      "keeps its earlier value");
  second->finish();
  EXPECT_EQ(rows("SELECT count(*) FROM runs"), (std::vector<DatabaseRow>{{1}}));
  EXPECT_EQ(
      rows("SELECT value FROM tags WHERE key = 't'"),
      (std::vector<DatabaseRow>{{"x"}}));
  environment_.set("MLFLOW_RUN_ID", "0123");
  expect_error<ConfigError>([&] { started(); }, "there is no MLflow run 0123");
}

TEST_F(MlflowDatabase, NamesTheVersionThatItDoesNotKnow) {
  Database(path()).run(
      "CREATE TABLE alembic_version (version_num);"
      "INSERT INTO alembic_version VALUES ('abc123');"
      "CREATE TABLE experiments (experiment_id INTEGER, name TEXT);");
  expect_error<ConfigError>(
      [&] { started(); }, "schema version abc123, whose table experiments has");
}

/// An MLflow server: what it receives and answers.
class MlflowServer : public ::testing::Test {
 protected:
  HttpServer::Answer answer(const HttpServer::Request& request) {
    requests_.push_back(request);
    if (num_failures_ > 0) {
      --num_failures_;
      return {.status = 503, .body = "busy"};
    }
    if (request.path.find("get-by-name") != std::string::npos)
      return {.status = 404, .body = R"({"message": "none"})"};
    if (request.path.ends_with("experiments/create"))
      return {.body = R"({"experiment_id": "7"})"};
    if (request.path.ends_with("runs/create")) {
      return {.body = R"({"run": {"info": {"run_id": "r1",
        "artifact_uri": "mlflow-artifacts:/7/r1/artifacts"}}})"};
    }
    if (request.method == "PUT") return {.status = 200, .body = ""};
    return {};
  }
  std::unique_ptr<GeneralTracker> started() {
    environment_.set("MLFLOW_TRACKING_URI", server_.url() + "/");
    environment_.set("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0");
    auto tracker = make(environment_);
    tracker->start();
    return tracker;
  }
  json body(std::size_t index) { return json::parse(requests_.at(index).body); }

  std::vector<HttpServer::Request> requests_;
  int num_failures_ = 0;
  detail::Environment environment_;
  HttpServer server_{
      [this](const HttpServer::Request& request) { return answer(request); }};
};

TEST_F(MlflowServer, GetsTheRun) {
  environment_.set("MLFLOW_TRACKING_TOKEN", "secret");
  const auto tracker = started();
  EXPECT_EQ(std::any_cast<std::string>(tracker->tracker()), "r1");
  tracker->store_init_configuration({{"lr", 0.5}});
  tracker->log(
      {{"a", 1}, {"n", std::nan("")}}, {.step = 2, .seconds = 1.5}, {});
  tracker->log_figure("f g", "<svg/>", {}, {});
  tracker->finish();
  ASSERT_EQ(requests_.size(), 7U);
  EXPECT_EQ(
      requests_[0].path,
      "/api/2.0/mlflow/experiments/get-by-name?experiment_name=p%20q");
  EXPECT_EQ(requests_[0].authorization, "Bearer secret");
  EXPECT_EQ(body(1).at("name"), "p q");
  EXPECT_EQ(body(2).at("experiment_id"), "7");
  EXPECT_EQ(body(2).at("start_time"), 1700000000500);
  EXPECT_EQ(
      body(3),
      json::parse(
          R"({"run_id": "r1", "params": [{"key": "lr", "value": "0.5"}]})"));
  EXPECT_EQ(requests_[4].method, "PUT");
  EXPECT_EQ(
      requests_[4].path,
      "/api/2.0/mlflow-artifacts/artifacts/7/r1/artifacts/f%20g.svg");
  EXPECT_EQ(requests_[4].body, "<svg/>");
  EXPECT_EQ(body(5), json::parse(R"({"run_id": "r1", "metrics": [
    {"key": "a", "value": 1.0, "timestamp": 1500, "step": 2},
    {"key": "n", "value": "NaN", "timestamp": 1500, "step": 2}]})"));
  EXPECT_EQ(body(6).at("status"), "FINISHED");
}

TEST_F(MlflowServer, GetsAtMostAThousandMetricsAtOnce) {
  const auto tracker = started();
  TrackedValues values;
  for (int i = 0; i < 2345; ++i) values.push_back({"m" + std::to_string(i), i});
  tracker->log(values, {}, {});
  tracker->flush();
  ASSERT_EQ(requests_.size(), 6U);
  EXPECT_EQ(body(3).at("metrics").size(), 1000U);
  EXPECT_EQ(body(5).at("metrics").size(), 345U);
}

TEST_F(MlflowServer, IsAskedAgainAndGetsWhatWaited) {
  const auto tracker = started();
  tracker->log({{"a", 1}}, {}, {});
  num_failures_ = 2;
  tracker->flush();
  EXPECT_EQ(requests_.size(), 6U);
  num_failures_ = 5;
  tracker->log({{"b", 1}}, {}, {});
  expect_error<Error>([&] { tracker->flush(); }, "with status 503: busy");
  tracker->flush();
  EXPECT_EQ(body(11).at("metrics").at(0).at("key"), "b");
}

TEST_F(MlflowServer, SendsFilesAsArtifacts) {
  const testing::TemporaryDirectory directory;
  detail::replace_file(directory / "w", std::string(100000, 'w'));
  environment_.set("MLFLOW_TRACKING_USERNAME", "me");
  environment_.set("MLFLOW_TRACKING_PASSWORD", "pw");
  const auto tracker = started();
  tracker->log_artifact((directory / "w").string(), "best");
  EXPECT_EQ(
      requests_.at(3).path,
      "/api/2.0/mlflow-artifacts/artifacts/7/r1/artifacts/best/w");
  EXPECT_EQ(requests_.at(3).body, std::string(100000, 'w'));
  EXPECT_EQ(requests_.at(3).authorization, "Basic bWU6cHc=");
}

TEST(MlflowServerThatIsNotThere, IsAnError) {
  detail::Environment environment;
  {
    const HttpServer server([](const auto&) { return HttpServer::Answer(); });
    environment.set("MLFLOW_TRACKING_URI", server.url());
  }
  environment.set("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0");
  expect_error<Error>([&] { make(environment)->start(); }, "no answer from");
}

}  // namespace mlflow_stores_test
}  // namespace
}  // namespace accelerate
