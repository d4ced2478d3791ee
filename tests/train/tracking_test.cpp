#include <accelerate/accelerate.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/journal/journal_kinds.h"
#include "format/journal/journal_reader.h"
#include "format/journal/run_history.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace {
namespace tracking_test {

using detail::JournalEvent;
using detail::JournalRank;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_on_ranks;

/// Runs optimizer steps and calls `after` after each.
void train(
    const Accelerator& accelerator,
    int num_steps,
    const std::function<void()>& after = [] {}) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int i = 0; i < num_steps; ++i) {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
    after();
  }
}

/// A tracker that keeps everything it receives.
class Keeper final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "keeper"; }
  [[nodiscard]] bool main_process_only() const override { return is_for_main; }
  void start() override { ++num_starts; }
  void store_init_configuration(const TrackedValues& values) override {
    ++num_configs;
    config = values;
  }
  void log(const TrackedValues& values, const LogTime&, const TrackedValues&)
      override {
    logged.push_back(TrackedValue(values).str());
  }
  bool log_item(const TrackedItem& item) override {
    if (const auto* each = std::get_if<TrackedImages>(&item.content)) {
      images = *each;
      image_options = item.options(name());
    } else if (const auto* figure = std::get_if<TrackedFigure>(&item.content)) {
      svg = figure->svg;
    } else {
      return GeneralTracker::log_item(item);
    }
    return true;
  }
  bool is_for_main = true;
  int num_starts = 0;
  int num_configs = 0;
  TrackedValues config;
  std::vector<std::string> logged;
  TrackedImages images;
  TrackedValues image_options;
  std::string svg;
};

class TrackingFacade : public ::testing::Test {
 protected:
  AcceleratorOptions options() {
    AcceleratorOptions result;
    result.cpu = true;
    result.project_dir = directory_.path().string();
    result.log_with = {keeper_};
    result.world = {.rank = 0, .size = 1};
    return result;
  }
  std::vector<std::string> points(const std::filesystem::path& run) {
    detail::RunHistory history;
    history.add(detail::JournalReader(run / "journal").read());
    std::vector<std::string> result;
    for (const auto& point : history.series().at("a"))
      result.push_back(
          std::to_string(point.step) + ":" + TrackedValue(point.value).str());
    return result;
  }

  /// Returns the last event of this kind, or null if there is none.
  static std::unique_ptr<JournalEvent> last_event(
      const std::filesystem::path& run,
      std::string_view kind) {
    detail::RunHistory history;
    history.add(detail::JournalReader(run / "journal").read());
    const auto* const found = history.last_event(kind);
    return found ? std::make_unique<JournalEvent>(found->event) : nullptr;
  }

  testing::TemporaryDirectory directory_;
  std::shared_ptr<Keeper> keeper_ = std::make_shared<Keeper>();
};

TEST_F(TrackingFacade, LogsTensorsAsNumbersAndLists) {
  const Accelerator accelerator(options());
  accelerator.init_trackers("p", {{"lr", 0.5}, {"n", torch::tensor(3)}});
  accelerator.log(
      {{"scalar", torch::tensor(0.5)},
       {"one", torch::tensor({1.5}, torch::kDouble)},
       {"list", torch::tensor({1, 2})},
       {"flag", torch::tensor(true)},
       {"both", {{"x", 1}}}},
      7);
  accelerator.end_training();
  EXPECT_EQ(keeper_->config, (TrackedValues{{"lr", 0.5}, {"n", 3}}));
  EXPECT_THAT(
      keeper_->logged,
      ElementsAre(
          "{'scalar': 0.5, 'one': 1.5, 'list': [1, 2], 'flag': True, 'both': "
          "{'x': 1}}"));
}

// As Accelerate's config={} and config=None.
TEST_F(TrackingFacade, PassesOnAnEmptyConfigurationButNotNone) {
  const auto num_configs_of = [&](auto start) {
    keeper_ = std::make_shared<Keeper>();
    const Accelerator accelerator(options());
    start(accelerator);
    accelerator.end_training();
    EXPECT_EQ(keeper_->config, TrackedValues());
    return keeper_->num_configs;
  };
  EXPECT_EQ(num_configs_of([](auto& it) { it.init_trackers("p", {}); }), 1);
  EXPECT_EQ(
      num_configs_of([](auto& it) { it.init_trackers("p", LogValues(), {}); }),
      1);
  EXPECT_EQ(num_configs_of([](auto& it) { it.init_trackers("p"); }), 0);
  EXPECT_EQ(
      num_configs_of([](auto& it) { it.init_trackers("p", std::nullopt, {}); }),
      0);
}

TEST_F(TrackingFacade, LogsImagesAndFigures) {
  const Accelerator accelerator(options());
  accelerator.init_trackers("p");
  accelerator.trackers().log_images("i", torch::ones({2, 3, 4, 5}), 1);
  accelerator.trackers().log_figure(
      "f", Figure{.series = {{.name = "s", .y = torch::tensor({1, 2})}}}, 1);
  accelerator.trackers().flush();
  EXPECT_EQ(keeper_->images.layout, "NCHW");
  EXPECT_EQ(keeper_->images.shape, (std::vector<std::int64_t>{2, 3, 4, 5}));
  EXPECT_TRUE(keeper_->images.is_float);
  EXPECT_THAT(keeper_->svg, ::testing::HasSubstr("<polyline"));
  accelerator.end_training();
}

TEST_F(TrackingFacade, TakesTheLayoutAndOptionsOfImages) {
  const Accelerator accelerator(options());
  accelerator.init_trackers("p");
  // Either dimension of 3 could be the channels.
  accelerator.trackers().log_images(
      "i",
      torch::ones({3, 4, 3}),
      1,
      {.layout = "HWC", .log_kwargs = {{"keeper", {{"caption", "c"}}}}});
  accelerator.trackers().flush();
  EXPECT_EQ(keeper_->images.layout, "HWC");
  EXPECT_EQ(keeper_->image_options, (TrackedValues{{"caption", "c"}}));
  accelerator.trackers().log_images("i", torch::ones({3, 4, 3}), 2);
  accelerator.trackers().flush();
  EXPECT_EQ(keeper_->images.layout, "CHW");
  EXPECT_EQ(keeper_->image_options, TrackedValues());
}

TEST_F(TrackingFacade, NamesTheRunAsItIsTold) {
  const auto scope = patch_environment({{"ACCELERATE_RUN_NAME", "variable"}});
  EXPECT_EQ(
      Accelerator(options()).trackers().run_dir(), directory_ / "variable");
  AcceleratorOptions named = options();
  named.run_name = "code";
  EXPECT_EQ(Accelerator(named).trackers().run_dir(), directory_ / "code");
}

TEST_F(TrackingFacade, WritesNoJournalIfItIsSwitchedOff) {
  AcceleratorOptions without = options();
  without.journal = false;
  const Accelerator accelerator(without);
  accelerator.init_trackers("p");
  accelerator.log({{"a", 1}}, 1);
  accelerator.end_training();
  EXPECT_EQ(keeper_->logged, std::vector<std::string>{"{'a': 1}"});
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(TrackingFacade, PutsTheJournalInTheLoggingDirectory) {
  AcceleratorOptions elsewhere = options();
  elsewhere.project_configuration.logging_dir = (directory_ / "logs").string();
  elsewhere.run_name = "r";
  const Accelerator accelerator(elsewhere);
  accelerator.log({{"a", 1.0}}, 1);
  accelerator.end_training();
  EXPECT_EQ(accelerator.trackers().run_dir(), directory_ / "logs" / "r");
  EXPECT_THAT(points(directory_ / "logs" / "r"), ElementsAre("1:1.0"));
}

TEST_F(TrackingFacade, RefusesWhatCannotBeLogged) {
  const Accelerator accelerator(options());
  expect_error<ConfigError>(
      [&] { accelerator.log({{"a", torch::Tensor()}}, 1); }, "undefined");
  expect_error<ConfigError>(
      [&] { accelerator.trackers().log_images("i", torch::ones({2}), 1); },
      "2 to 4 dimensions");
  AcceleratorOptions unknown = options();
  unknown.log_with = {"nothing"};
  expect_error<ConfigError>(
      [&] { const Accelerator refused(unknown); },
      "Unsupported logging capability: nothing");
}

TEST_F(TrackingFacade, GoesOnWithTheRunOfACheckpoint) {
  std::filesystem::path run;
  {
    const Accelerator first(options());
    run = first.trackers().run_dir();
    for (int step = 1; step <= 2; ++step) first.log({{"a", 1.0 * step}}, step);
    first.save_state(directory_ / "saved");
    first.log({{"a", 3.0}}, 3);
  }
  const Accelerator second(options());
  EXPECT_NE(second.trackers().run_dir(), run);
  second.load_state(directory_ / "saved");
  EXPECT_EQ(second.trackers().run_dir(), run);
  second.log({{"a", 30.0}}, 3);
  second.end_training();
  EXPECT_THAT(points(run), ElementsAre("1:1.0", "2:2.0", "3:30.0"));
}

TEST_F(TrackingFacade, WritesWhereTheRanksAre) {
  run_on_ranks(3, [&](const WorldOptions& world) {
    AcceleratorOptions of_rank = options();
    of_rank.world = world;
    of_rank.run_name = "r";
    of_rank.figures_interval = std::chrono::milliseconds(5);
    const Accelerator accelerator(of_rank);
    train(accelerator, 4);
    std::vector<std::pair<std::int64_t, std::int64_t>> steps;
    const std::vector<std::pair<std::int64_t, std::int64_t>> expected{
        {0, 4}, {1, 4}, {2, 4}};
    // Figures arrive at their own times.
    while (accelerator.is_main_process() && steps != expected) {
      accelerator.trackers().flush();
      const auto event = last_event(directory_ / "r", "ranks");
      steps.clear();
      if (!event) continue;
      for (const JournalRank& each : detail::read_ranks(event->body)) {
        EXPECT_GT(each.memory_mb, 1);
        steps.emplace_back(each.rank, each.step);
      }
    }
    accelerator.wait_for_everyone();
    accelerator.end_training();
  });
  const auto system = last_event(directory_ / "r", "system");
  ASSERT_TRUE(system);
  EXPECT_EQ(detail::read_values(system->body).back().name, "steps_per_second");
}

TEST_F(TrackingFacade, WritesNoFiguresIfTheyAreSwitchedOff) {
  AcceleratorOptions off = options();
  off.run_name = "r";
  off.figures_interval = std::chrono::milliseconds(0);
  const Accelerator accelerator(off);
  train(accelerator, 2);
  accelerator.end_training();
  EXPECT_FALSE(last_event(directory_ / "r", "system"));
  EXPECT_FALSE(last_event(directory_ / "r", "ranks"));
}

TEST_F(TrackingFacade, WritesWhereTheStepsOfAProfileWent) {
  AcceleratorOptions alone = options();
  alone.run_name = "r";
  const Accelerator accelerator(alone);
  Profile profile = accelerator.profile(
      {.activities = std::vector<ProfilerActivity>{},
       .schedule_option = ProfileSchedule{.wait = 1, .active = 2}});
  accelerator.log({{"a", 0.5}}, 7);
  train(accelerator, 4, [&] { profile.step(); });
  profile.stop();
  const StepTimes times = profile.step_times();
  accelerator.end_training();
  const auto event = last_event(directory_ / "r", "profile");
  ASSERT_TRUE(event);
  EXPECT_EQ(times.num_steps, 2);
  EXPECT_EQ(detail::read_table(event->body), step_times_values({times}));
}

TEST_F(TrackingFacade, WritesTheGatheredTimesOfAllRanks) {
  std::vector<StepTimes> gathered;
  run_on_ranks(2, [&](const WorldOptions& world) {
    AcceleratorOptions of_rank = options();
    of_rank.world = world;
    of_rank.run_name = "r";
    const Accelerator accelerator(of_rank);
    Profile profile =
        accelerator.profile({.activities = std::vector<ProfilerActivity>{}});
    train(accelerator, 3, [&] { profile.step(); });
    profile.stop();
    const auto all = profile.gather_step_times();
    if (accelerator.is_main_process()) gathered = all;
    accelerator.end_training();
  });
  ASSERT_EQ(gathered.size(), 2U);
  const auto event = last_event(directory_ / "r", "profile");
  ASSERT_TRUE(event);
  EXPECT_EQ(detail::read_table(event->body), step_times_values(gathered));
}

// As in Accelerate, the accelerator's functions act on the main process,
// whatever a tracker says about itself.
TEST_F(TrackingFacade, CallsTrackersOnTheMainProcessOnly) {
  for (const bool is_for_main : {true, false}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const auto own = std::make_shared<Keeper>();
      own->is_for_main = is_for_main;
      AcceleratorOptions of_rank = options();
      of_rank.world = world;
      of_rank.journal = false;
      of_rank.log_with = {own};
      const Accelerator accelerator(of_rank);
      accelerator.init_trackers("p", {{"lr", 0.5}});
      accelerator.log({{"a", 1}}, 1);
      const bool is_main = accelerator.is_main_process();
      EXPECT_EQ(
          accelerator.get_tracker("keeper")->name(),
          is_main ? "keeper" : "blank");
      EXPECT_EQ(accelerator.trackers().all().size(), is_main ? 1U : 0U);
      accelerator.end_training();
      EXPECT_EQ(own->num_starts, is_main ? 1 : 0);
      EXPECT_EQ(own->config.size(), is_main ? 1U : 0U);
      EXPECT_EQ(own->logged.size(), is_main ? 1U : 0U);
    });
  }
}

}  // namespace tracking_test
}  // namespace
}  // namespace accelerate
