#include "track/run_tracking.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "format/journal/journal_reader.h"
#include "format/journal/run_history.h"
#include "support/expect_error.h"
#include "support/recorded_cases.h"
#include "support/temporary_directory.h"
#include "support/tracked_run.h"
#include "track/run_name.h"

namespace accelerate {
namespace {
namespace run_tracking_test {

namespace fs = std::filesystem;
using detail::RunTracking;
using detail::RunTrackingOptions;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

/// Records its calls.
class Custom final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "custom"; }
  void store_init_configuration(const TrackedValues& values) override {
    seen.push_back(values);
  }
  void log(const TrackedValues& values, const LogTime&, const TrackedValues&)
      override {
    seen.push_back(values);
  }

  TrackedValue::List seen;
};

class Tracking : public ::testing::Test {
 protected:
  RunTrackingOptions options() {
    RunTrackingOptions result;
    result.logging_dir = directory_.path();
    result.logger = Logger(
        [this](const LogRecord& record) {
          const std::lock_guard lock(mutex_);
          warnings_.emplace_back(record.message);
        },
        LogLevel::warning);
    return result;
  }
  RunTrackingOptions named(const std::string& run) {
    RunTrackingOptions result = options();
    result.run_name = run;
    return result;
  }
  static void log(RunTracking& tracking, std::int64_t step, double value) {
    tracking.log({{"a", value}}, step);
  }
  detail::RunHistory history(const std::string& run) {
    detail::RunHistory result;
    result.add(
        detail::JournalReader(detail::journal_path(directory_ / run)).read());
    return result;
  }
  /// Returns the points of "a" as "step:value".
  std::vector<std::string> points(const std::string& run) {
    std::vector<std::string> result;
    const auto all = history(run);
    const auto found = all.series().find("a");
    if (found == all.series().end()) return result;
    for (const auto& point : found->second)
      result.push_back(
          std::to_string(point.step) + ":" + TrackedValue(point.value).str());
    return result;
  }
  std::vector<std::string> directories() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  testing::TemporaryDirectory directory_;

 private:
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(Tracking, OpensTheJournalWhenSomethingIsLogged) {
  RunTracking tracking(named("r"));
  EXPECT_THAT(directories(), IsEmpty());
  EXPECT_EQ(tracking.run_dir(), "");
  log(tracking, 1, 0.5);
  EXPECT_EQ(tracking.run_dir(), directory_ / "r");
  tracking.finish();
  EXPECT_THAT(points("r"), ElementsAre("1:0.5"));
}

// Real numbers are queued separately from values logged with others.
TEST_F(Tracking, KeepsTheOrderOfNumbersAndOthers) {
  RunTracking tracking(named("r"));
  const TrackedValues all[] = {
      {{"a", 0.5}, {"", -0.0}},
      {{"a", 1.5}, {"epoch", 1}},
      {{"a", 2.5}},
      {{"note", "text"}},
      {{"a", 3.5}}};
  for (int i = 0; i < 5; ++i) tracking.log(all[i], i);
  tracking.log({{"a", 4.5}}, std::nullopt);
  tracking.finish();
  std::vector<std::string> found;
  for (const auto& entry :
       detail::JournalReader(detail::journal_path(directory_ / "r")).read()) {
    const std::string step = entry.step ? std::to_string(*entry.step) : "none";
    if (const auto* real =
            std::get_if<detail::JournalScalars>(&entry.content)) {
      for (const auto& [name, value] : real->scalars)
        found.push_back(step + " " + name + " " + TrackedValue(value).str());
    } else if (
        const auto* event = std::get_if<detail::JournalEvent>(&entry.content)) {
      if (event->kind == "values") found.push_back(step + " " + event->body);
    }
  }
  EXPECT_THAT(
      found,
      ElementsAre(
          "0 a 0.5",
          "0  -0.0",
          R"(1 {"a":1.5,"epoch":1})",
          "2 a 2.5",
          R"(3 {"note":"text"})",
          "4 a 3.5",
          "none a 4.5"));
}

TEST_F(Tracking, OpensTheJournalAtOnceIfItIsToldTo) {
  RunTrackingOptions at_once = named("r");
  at_once.opens_at_once = true;
  const RunTracking tracking(std::move(at_once));
  EXPECT_THAT(directories(), ElementsAre("r"));
}

TEST_F(Tracking, NamesRunsAfterProjectAndTime) {
  RunTracking tracking(options());
  tracking.init_trackers("my project", {}, {});
  tracking.finish();
  EXPECT_THAT(
      directories(),
      ElementsAre(MatchesRegex("my-project-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")));
}

TEST(RunName, IsThatOfADirectory) {
  EXPECT_THAT(
      detail::make_run_name("../a b"),
      MatchesRegex("-.-a-b-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}"));
  detail::require_run_name("a b.c");
  const std::vector<std::string> refused{
      "", ".", "..", "a/b", std::string(201, 'x')};
  for (const std::string& name : refused) {
    testing::expect_error<ConfigError>(
        [&] { detail::require_run_name(name); }, "run_name is");
  }
}

TEST_F(Tracking, DoesNothingOnOtherRanks) {
  RunTrackingOptions other = named("r");
  other.is_main_process = false;
  other.opens_at_once = true;
  const auto custom = std::make_shared<Custom>();
  other.log_with = {custom};
  RunTracking tracking(std::move(other));
  tracking.init_trackers("p", TrackedValues{{"lr", 0.1}}, {});
  log(tracking, 1, 0.5);
  EXPECT_EQ(tracking.get_tracker("custom")->name(), "blank");
  EXPECT_THAT(tracking.trackers(), IsEmpty());
  tracking.finish();
  EXPECT_THAT(directories(), IsEmpty());
  EXPECT_THAT(custom->seen, IsEmpty());
}

TEST_F(Tracking, WritesNoJournalIfThatIsSwitchedOff) {
  RunTrackingOptions without = named("r");
  without.journal = false;
  const auto custom = std::make_shared<Custom>();
  without.log_with = {custom};
  RunTracking tracking(std::move(without));
  tracking.init_trackers("p", {}, {});
  log(tracking, 1, 0.5);
  tracking.finish();
  EXPECT_THAT(directories(), IsEmpty());
  EXPECT_EQ(custom->seen.size(), 1U);
}

TEST_F(Tracking, WarnsAndContinuesWithoutAJournal) {
  std::ofstream(directory_ / "r") << "a file in its place";
  RunTracking tracking(named("r"));
  log(tracking, 1, 0.5);
  log(tracking, 2, 0.5);
  EXPECT_THAT(
      warnings(), ElementsAre(HasSubstr("there is no journal of this run")));
}

TEST_F(Tracking, KeepsWarningsAndCheckpointsInTheJournal) {
  RunTrackingOptions with = named("r");
  const auto warnings = with.warnings;
  RunTracking tracking(std::move(with));
  log(tracking, 3, 0.5);
  warnings->take({LogLevel::warning, "data", "slow disk", 0});
  warnings->take({LogLevel::info, "data", "not kept", 0});
  bool is_done = false;
  tracking.note_checkpoint("first", [&] { return is_done; });
  tracking.note_checkpoint("failed", [] { return false; });
  is_done = true;
  log(tracking, 4, 0.5);
  tracking.finish();
  std::vector<std::string> found;
  const detail::RunHistory all = history("r");
  for (const auto& event : all.events()) {
    found.push_back(
        event.event.kind + " " + event.event.name + event.event.body + " " +
        (event.step ? std::to_string(*event.step) : "none"));
  }
  EXPECT_THAT(
      found,
      ElementsAre("warning [data] slow disk none", "checkpoint first 3"));
}

TEST_F(Tracking, ResumesTheJournalOfACheckpoint) {
  {
    RunTracking first(named("r"));
    for (int step = 1; step <= 5; ++step) log(first, step, step);
    EXPECT_EQ(first.position()->step, 5);
  }
  RunTracking second(options());
  second.resume({"r", 3});
  log(second, 4, 40);
  second.finish();
  EXPECT_THAT(directories(), ElementsAre("r"));
  EXPECT_THAT(points("r"), ElementsAre("1:1.0", "2:2.0", "3:3.0", "4:40.0"));
  EXPECT_EQ(history("r").sessions().size(), 2U);
}

TEST_F(Tracking, TakesAlongWhatWasLoggedBeforeItResumed) {
  {
    RunTracking first(named("r"));
    for (int step = 1; step <= 3; ++step) log(first, step, step);
  }
  RunTracking second(options());
  second.init_trackers("p", TrackedValues{{"lr", 0.5}}, {});
  second.resume({"r", 2});
  EXPECT_EQ(second.run_dir(), directory_ / "r");
  log(second, 3, 30);
  second.finish();
  EXPECT_THAT(directories(), ElementsAre("r"));
  EXPECT_THAT(points("r"), ElementsAre("1:1.0", "2:2.0", "3:30.0"));
  EXPECT_EQ(history("r").last_event("config")->event.body, "{\"lr\":0.5}");
}

TEST_F(Tracking, RewindsWithinAProcess) {
  RunTracking tracking(named("r"));
  for (int step = 1; step <= 3; ++step) log(tracking, step, step);
  tracking.resume({"r", 1});
  log(tracking, 2, 20);
  tracking.finish();
  EXPECT_THAT(points("r"), ElementsAre("1:1.0", "2:20.0"));
}

TEST_F(Tracking, WarnsOnceOfStepsThatAreCountedFromTheStartAgain) {
  const std::pair<std::int64_t, int> table[] = {{1, 1}, {3, 1}, {4, 0}};
  for (const auto& [first_step, num_warnings] : table) {
    SCOPED_TRACE(first_step);
    const std::string run = "r" + std::to_string(first_step);
    {
      RunTracking first(named(run));
      for (int step = 1; step <= 5; ++step) log(first, step, step);
    }
    const auto before = static_cast<int>(warnings().size());
    RunTracking second(options());
    second.resume({run, 3});
    log(second, first_step, 10);
    log(second, first_step + 1, 20);
    EXPECT_EQ(static_cast<int>(warnings().size()) - before, num_warnings);
    if (num_warnings == 0) continue;
    EXPECT_THAT(
        warnings().back(),
        HasSubstr(
            "the run " + run +
            " was resumed after step 3, but the first step "
            "that is logged is " +
            std::to_string(first_step)));
    EXPECT_THAT(
        warnings().back(),
        HasSubstr("register_for_checkpointing(\"step\", step)"));
  }
}

TEST_F(Tracking, NamesARunAfterItsProjectAlsoIfTheJournalIsOpen) {
  RunTrackingOptions at_once = options();
  at_once.opens_at_once = true;
  const auto tap = at_once.warnings;
  RunTracking tracking(std::move(at_once));
  tap->take({LogLevel::warning, "data", "early", 0});
  tracking.init_trackers("digits", {}, {});
  log(tracking, 1, 0.5);
  tracking.finish();
  ASSERT_THAT(
      directories(),
      ElementsAre(MatchesRegex("digits-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")));
  const auto all = history(directories().front());
  EXPECT_EQ(all.series().at("a").size(), 1U);
  EXPECT_EQ(all.last_event("warning")->event.body, "[data] early");
  EXPECT_THAT(
      all.sessions().back().description, HasSubstr(directories().front()));
}

TEST_F(Tracking, KeepsANameThatIsKnown) {
  RunTrackingOptions at_once = options();
  at_once.opens_at_once = true;
  RunTracking tracking(std::move(at_once));
  const fs::path known = tracking.run_dir();
  tracking.init_trackers("digits", {}, {});
  EXPECT_EQ(tracking.run_dir(), known);
}

TEST_F(Tracking, LeavesAFileThatIsNoJournalAlone) {
  fs::create_directory(directory_ / "r");
  std::ofstream(directory_ / "r" / "journal") << "diary\n";
  {
    RunTracking tracking(named("r"));
    log(tracking, 1, 0.5);
  }
  EXPECT_THAT(
      warnings(),
      ElementsAre(AllOf(
          HasSubstr("there is no journal of this run"),
          HasSubstr("is not a journal, and is left as it is"))));
  std::ifstream file(directory_ / "r" / "journal");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "diary\n");
}

TEST_F(Tracking, NotesOnceThatAFigureIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  RunTracking tracking(named("r"));
  log(tracking, 2, 0.5);
  for (int step = 3; step < 6; ++step) log(tracking, step, nan);
  tracking.log({{"b", -1 / 0.0}, {"epoch", 1}}, std::nullopt);
  tracking.finish();
  std::vector<std::string> found;
  const detail::RunHistory all = history("r");
  for (const auto& event : all.events())
    found.push_back(event.event.kind + " " + event.event.body);
  EXPECT_THAT(
      found,
      ElementsAre(
          "warning a is nan since step 3",
          "warning b is -inf",
          R"(values {"b":{"__float__":"-inf"},"epoch":1})"));
}

TEST_F(Tracking, GivesOutTrackersThatRefuseCallsAfterTheEnd) {
  RunTrackingOptions with = named("r");
  with.log_with = {"tensorboard", "dvclive"};
  RunTracking tracking(std::move(with));
  tracking.init_trackers(
      "p", {}, {{"dvclive", {{"dir", (directory_ / "live").string()}}}});
  const auto one = tracking.get_tracker("tensorboard");
  const auto other = tracking.get_tracker("dvclive");
  one->log({{"a", 1.0}}, {1, 0}, {});
  tracking.finish();
  for (const auto& each : {one, other}) {
    testing::expect_error<ConfigError>(
        [&] { each->log({{"a", 1.0}}, {2, 0}, {}); },
        "was called after finish()");
    each->flush();
    each->finish();
  }
}

// A store that is not a database: the error, and nothing about what never began.
TEST_F(Tracking, SaysOnceThatATrackerCannotStart) {
  std::ofstream(directory_ / "garbage.db") << std::string(8192, 'x');
  RunTrackingOptions with = named("r");
  with.log_with = {"mlflow"};
  with.environment.set(
      "MLFLOW_TRACKING_URI",
      "sqlite:///" + (directory_ / "garbage.db").string());
  {
    RunTracking tracking(std::move(with));
    testing::expect_error<Error>(
        [&] { tracking.init_trackers("p", TrackedValues{{"lr", 1}}, {}); },
        "file is not a database");
  }
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(Tracking, LeavesOtherRunsAloneIfItHasAName) {
  {
    RunTracking first(named("r"));
    log(first, 1, 1);
  }
  RunTracking second(named("fork"));
  second.resume({"r", 1});
  log(second, 2, 2);
  second.finish();
  EXPECT_THAT(points("r"), ElementsAre("1:1.0"));
  EXPECT_THAT(points("fork"), ElementsAre("2:2.0"));
}

TEST_F(Tracking, DoesNotFollowNamesOutOfItsDirectory) {
  RunTracking tracking(options());
  tracking.resume({"../elsewhere", 1});
  tracking.resume({"missing", 1});
  EXPECT_EQ(tracking.run_dir(), "");
}

TEST_F(Tracking, RefusesASecondStart) {
  RunTracking tracking(named("r"));
  tracking.init_trackers("p", {}, {});
  testing::expect_error<ConfigError>(
      [&] { tracking.init_trackers("p", {}, {}); }, "must be called once");
}

TEST_F(Tracking, CallsCustomTrackersAsAccelerateDid) {
  const auto cases = testing::recorded_cases("custom");
  EXPECT_EQ(cases.size(), 8U);
  for (const auto& recorded : cases) {
    SCOPED_TRACE(recorded.at("id"));
    nlohmann::json found = testing::run_with_own_tracker(recorded.at("input"));
    nlohmann::json expected = recorded.at("expected");
    nlohmann::json& answer = expected.at("get_tracker");
    if (answer.is_object()) {
      EXPECT_THAT(
          found.at("get_tracker").value("error", ""),
          HasSubstr(answer.at("message").get<std::string>()));
      answer = found.at("get_tracker");
    }
    EXPECT_EQ(testing::difference(found, expected), "");
  }
}

}  // namespace run_tracking_test
}  // namespace
}  // namespace accelerate
