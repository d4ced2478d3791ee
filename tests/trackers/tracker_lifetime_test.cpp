// Every tracker of the table, called when it must not be: before its start,
// after a start that failed, after its end, twice.
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/python_calls.h"
#include "support/temporary_directory.h"
#include "trackers/feed/tracker_feed.h"
#include "trackers/registry.h"

namespace accelerate {
namespace {
namespace tracker_lifetime_test {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Call {
  std::string name;
  std::function<void(GeneralTracker&)> make;
};

// All that need a run.
std::vector<Call> calls() {
  const TrackedValues none;
  const LogTime now{1, 2};
  const TrackedImages image{{1, 1, 3}, "HWC", false, "rgb"};
  const TrackedHistogram histogram{{0, 1}, {1}, 0, 1, 1, 1, 1};
  return {
      {"store_init_configuration()",
       [=](auto& each) { each.store_init_configuration({{"lr", 0.1}}); }},
      {"log()", [=](auto& each) { each.log({{"loss", 1.0}}, now, none); }},
      {"log_images()",
       [=](auto& each) { each.log_images("i", image, now, none); }},
      {"log_table()",
       [=](auto& each) { each.log_table("t", {{"a"}, {{1}}}, now, none); }},
      {"log_histogram()",
       [=](auto& each) { each.log_histogram("h", histogram, now, none); }},
      {"log_figure()",
       [=](auto& each) { each.log_figure("f", "<svg/>", now, none); }},
      {"log_artifact()", [=](auto& each) { each.log_artifact("/proc", ""); }}};
}

void expect_refused(GeneralTracker& tracker, const std::string& why) {
  for (const Call& call : calls()) {
    SCOPED_TRACE(call.name);
    expect_error<ConfigError>(
        [&] { call.make(tracker); },
        call.name + " of " + tracker.name() + " was called " + why);
  }
  // There is nothing to do for these.
  tracker.flush();
  tracker.finish();
  (void)tracker.tracker();
  (void)tracker.requires_logging_directory();
  (void)tracker.main_process_only();
}

struct Kind {
  std::string tracker;
  TrackedValues init_kwargs = {};
  std::vector<std::pair<std::string, std::string>> variables = {};
};

// The table's trackers, and those that a setting makes another class of.
std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const auto& each : detail::tracker_classes()) {
    if (each.name != "registry_test" && each.name != "replaced")
      all.push_back({each.name});
  }
  all.push_back({"wandb", {{"mode", "online"}}});
  all.push_back({"wandb", {{"mode", "disabled"}}});
  all.push_back({"trackio", {{"space_id", "s"}}});
  all.push_back({"mlflow", {}, {{"MLFLOW_TRACKING_URI", "files"}}});
  return all;
}

class Lifetime : public ::testing::Test {
 protected:
  // Whether it makes its calls in a Python package.
  static bool needs_python(const Kind& kind) {
    for (const auto& each : kind.init_kwargs) {
      if (each.value == TrackedValue("online") || each.name == "space_id")
        return true;
    }
    return detail::find_tracker_class(kind.tracker)->needs_python;
  }
  [[nodiscard]] std::shared_ptr<GeneralTracker> make(const Kind& kind) const {
    detail::TrackerRequest request;
    request.project_name = "p";
    request.logging_dir = root_ / "logs";
    request.init_kwargs = kind.init_kwargs;
    request.environment = environment_;
    for (auto [name, value] : kind.variables)
      request.environment.set(name, root_ / value);
    if (kind.tracker == "wandb" && !needs_python(kind))
      request.environment.set("WANDB_DIR", root_.string());
    if (kind.tracker == "dvclive")
      request.init_kwargs.push_back({"dir", (root_ / "live").string()});
    return detail::find_tracker_class(kind.tracker)->make(request);
  }
  void set_root(const std::filesystem::path& root) {
    root_ = root;
    environment_ = testing::fake_package_environment(directory_ / "calls");
    environment_.set("TRACKIO_DIR", (root / "trackio").string());
    environment_.set(
        "MLFLOW_TRACKING_URI", "sqlite:///" + (root / "m.db").string());
  }

  testing::TemporaryDirectory directory_;
  std::filesystem::path root_;
  detail::Environment environment_;
};

TEST_F(Lifetime, IsWhatEveryTrackerKeepsTo) {
  set_root(directory_.path() / "good");
  std::filesystem::create_directories(root_);
  const bool has_python = !testing::python_for_tests().empty();
  for (const Kind& kind : kinds()) {
    if (needs_python(kind) && !has_python) continue;
    SCOPED_TRACE(kind.tracker + " " + TrackedValue(kind.init_kwargs).str());
    const auto tracker = make(kind);
    expect_refused(*tracker, "before start(), which init_trackers() calls");
    tracker->start();
    expect_error<ConfigError>([&] { tracker->start(); }, "was called before");
    tracker->log({{"loss", 1.0}}, {1, 2}, {});
    tracker->finish();
    expect_refused(*tracker, "after finish()");
    expect_error<ConfigError>([&] { tracker->start(); }, "after finish()");
  }
}

// A file is in the way of all directories, and no interpreter is there.
TEST_F(Lifetime, HasNotBegunIfTheStartFails) {
  std::ofstream(directory_ / "file") << "in the way";
  set_root(directory_.path() / "file");
  for (Kind kind : kinds()) {
    if (kind.init_kwargs == TrackedValues{{"mode", "disabled"}}) continue;
    SCOPED_TRACE(kind.tracker + " " + TrackedValue(kind.init_kwargs).str());
    if (needs_python(kind))
      kind.init_kwargs.push_back({"python", "/nowhere/python"});
    const auto tracker = make(kind);
    for (int i = 0; i < 2; ++i) {
      EXPECT_THROW(tracker->start(), Error);
      expect_refused(*tracker, "although start() failed");
    }
  }
}

// An object of the program's own, or of a class that it registered, which does
// not guard itself.
class Own final : public GeneralTracker {
 public:
  Own(std::string name, bool can_start, std::vector<std::string>& calls)
      : name_(std::move(name)), can_start_(can_start), calls_(calls) {}
  [[nodiscard]] std::string name() const override { return name_; }
  void start() override {
    calls_.push_back(name_ + " start");
    if (!can_start_) throw Error("no server");
  }
  void log(const TrackedValues&, const LogTime&, const TrackedValues&)
      override {
    calls_.push_back(name_ + " log");
  }
  void flush() override { calls_.push_back(name_ + " flush"); }
  void finish() override { calls_.push_back(name_ + " finish"); }

 private:
  std::string name_;
  bool can_start_;
  std::vector<std::string>& calls_;
};

TEST(FeedLifetime, FinishesOnlyWhatHasStarted) {
  std::vector<std::string> calls, warnings;
  {
    detail::TrackerFeed feed(
        {std::make_shared<Own>("one", true, calls),
         std::make_shared<Own>("two", false, calls),
         std::make_shared<Own>("three", true, calls)},
        {.warn = [&](const std::string& text) { warnings.push_back(text); }});
    expect_error<Error>([&] { feed.start({}); }, "no server");
    feed.push_numbers({{"loss", 1.0}}, {1, 2});
    feed.flush();
  }
  std::erase(calls, "one flush");
  EXPECT_THAT(
      calls, ElementsAre("one start", "two start", "one log", "one finish"));
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(FeedLifetime, EndsOnceEvenIfItsEndFails) {
  class Failing final : public GeneralTracker {
   public:
    explicit Failing(int& num_calls) : num_calls_(num_calls) {}
    [[nodiscard]] std::string name() const override { return "failing"; }
    void finish() override {
      ++num_calls_;
      throw Error("the server is gone");
    }

   private:
    int& num_calls_;
  };
  int num_calls = 0;
  const auto tracker =
      detail::guard_tracker(std::make_unique<Failing>(num_calls));
  tracker->start();
  expect_error<Error>([&] { tracker->finish(); }, "the server is gone");
  tracker->finish();
  EXPECT_EQ(num_calls, 1);
}

}  // namespace tracker_lifetime_test
}  // namespace
}  // namespace accelerate
