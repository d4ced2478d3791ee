// Trackers that wait for others: the end of training has a bound, and what they
// did not get is said once.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/http_server.h"
#include "support/python_calls.h"
#include "support/temporary_directory.h"
#include "trackers/feed/tracker_feed.h"
#include "trackers/files/database.h"
#include "trackers/http/http_client.h"
#include "trackers/python/tracker_process.h"
#include "trackers/registry.h"

namespace accelerate {
namespace {
namespace tracker_waits_test {

using detail::Database;
using detail::TrackerFeed;
using detail::TrackerPatience;
using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;

TEST(TrackerPatience, EndsWaitsInProgress) {
  TrackerPatience patience;
  EXPECT_TRUE(patience.pause(milliseconds(0)));
  std::thread other([&] { patience.end_by(TrackerPatience::Clock::now()); });
  EXPECT_FALSE(patience.pause(hours(10)));
  EXPECT_TRUE(patience.is_over());
  other.join();
  EXPECT_FALSE(patience.pause(milliseconds(0)));
}

// Holds a database's write lock.
class Lock {
 public:
  explicit Lock(const std::filesystem::path& path) : database_(path) {
    database_.run("BEGIN IMMEDIATE");
  }

 private:
  Database database_;
};

class Waiting : public ::testing::Test {
 protected:
  detail::TrackerFeedOptions options() {
    return {
        .where_else = "look into the journal",
        .warn =
            [this](const std::string& text) {
              const std::lock_guard lock(mutex_);
              warnings_.push_back(text);
            },
        .patience = patience_,
        .most_end_wait = milliseconds(50)};
  }
  std::shared_ptr<GeneralTracker> make(const std::string& name) {
    detail::TrackerRequest request;
    request.project_name = "p";
    request.environment = environment_;
    request.patience = patience_;
    return detail::find_tracker_class(name)->make(request);
  }
  // A run of 400 steps whose tracker cannot go on before it ends.
  void log_and_finish(TrackerFeed& feed) {
    for (int step = 0; step < 400; ++step)
      feed.push_numbers({{"loss", 1.0}}, {step, 0});
    feed.finish();
  }

  testing::TemporaryDirectory directory_;
  detail::Environment environment_;
  std::shared_ptr<TrackerPatience> patience_ =
      std::make_shared<TrackerPatience>();
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(Waiting, ForALockedDatabaseEndsWithTheRun) {
  environment_.set("TRACKIO_DIR", (directory_ / "trackio").string());
  environment_.set(
      "MLFLOW_TRACKING_URI", "sqlite:///" + (directory_ / "m.db").string());
  const std::pair<std::string, std::string> table[] = {
      {"trackio", directory_ / "trackio/p.db"},
      {"mlflow", directory_ / "m.db"}};
  for (const auto& [name, path] : table) {
    SCOPED_TRACE(name);
    warnings_.clear();
    TrackerFeed feed({make(name)}, options());
    feed.start(TrackedValues{{"lr", 0.5}});
    const Lock lock(path);
    log_and_finish(feed);
    EXPECT_THAT(
        warnings_,
        ElementsAre(HasSubstr(
            name + " failed (flush): [trackers] the database " + path)));
  }
}

TEST_F(Waiting, ForAServerThatHangsEndsWithTheRun) {
  std::atomic<bool> hangs = false, may_end = false;
  testing::HttpServer server([&](const auto& request) {
    if (hangs && request.path.find("log-batch") != std::string::npos) {
      while (!may_end) std::this_thread::yield();
    }
    return testing::HttpServer::Answer{
        200,
        R"({"experiment": {"experiment_id": "1"}, "run": {"info": )"
        R"({"run_id": "r", "artifact_uri": "mlflow-artifacts:/1"}}})"};
  });
  environment_.set("MLFLOW_TRACKING_URI", server.url());
  TrackerFeed feed({make("mlflow")}, options());
  feed.start({});
  hangs = true;
  log_and_finish(feed);
  EXPECT_THAT(
      warnings_,
      ElementsAre(HasSubstr("mlflow failed (flush): [trackers] no answer")));
  may_end = true;
}

TEST_F(Waiting, ForAPythonProcessEndsWithTheRun) {
  if (testing::python_for_tests().empty())
    GTEST_SKIP() << "there is no python3";
  environment_ = testing::fake_package_environment(directory_ / "calls");
  detail::TrackerProcess process(
      {.environment = environment_, .patience = patience_});
  patience_->end_by(TrackerPatience::Clock::now());
  // It never answers to half a line.
  expect_error<Error>([&] { process.ask("{\"do\": \"start\""); }, "process");
  EXPECT_FALSE(process.is_running());
}

// Fails after as long as it is told.
class Slow final : public GeneralTracker {
 public:
  explicit Slow(milliseconds time) : time_(time) {}
  [[nodiscard]] std::string name() const override { return "slow"; }
  void log(const TrackedValues&, const LogTime&, const TrackedValues&)
      override {
    ++num_calls;
    std::this_thread::sleep_for(time_);
    throw Error("no answer");
  }
  void finish() override { ++num_ends; }

  int num_calls = 0, num_ends = 0;

 private:
  milliseconds time_;
};

TEST_F(Waiting, GivesTheTrackerARestThatIsReported) {
  auto own = options();
  own.slow = milliseconds(1);
  own.rest_factor = 1'000'000;
  const auto slow = std::make_shared<Slow>(milliseconds(2));
  {
    TrackerFeed feed({slow}, own);
    feed.start({});
    for (int step = 0; step < 400; ++step)
      feed.push_numbers({{"loss", 1.0}}, {step, 0});
    feed.flush();
    EXPECT_EQ(slow->num_calls, 1);
  }
  EXPECT_EQ(slow->num_ends, 1);
  EXPECT_THAT(
      warnings_,
      ElementsAre(
          HasSubstr("slow failed (values): no answer; training continues, and "
                    "look into the journal"),
          HasSubstr("399 values, images and the like were not passed to slow, "
                    "which did not respond in time; look into the journal")));
}

TEST_F(Waiting, DoesNotRestForAFailureThatTakesNoTime) {
  const auto quick = std::make_shared<Slow>(milliseconds(0));
  auto own = options();
  own.slow = hours(1);
  {
    TrackerFeed feed({quick}, own);
    for (int step = 0; step < 40; ++step)
      feed.push_numbers({{"loss", 1.0}}, {step, 0});
  }
  EXPECT_EQ(quick->num_calls, 40);
}

TEST(HttpAnswers, HaveABound) {
  testing::HttpServer server([](const auto&) {
    return testing::HttpServer::Answer{
        200, std::string(detail::kMostHttpAnswerBytes + 1, 'x')};
  });
  detail::HttpClientOptions options;
  options.base = server.url();
  detail::HttpClient client(std::move(options));
  expect_error<Error>(
      [&] { client.get("/"); }, "answers with more than 16777216 bytes");
}

}  // namespace tracker_waits_test
}  // namespace
}  // namespace accelerate
