#include <accelerate/accelerate.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/journal/journal_reader.h"
#include "format/journal/run_history.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace {
namespace tracking_test {

using ::testing::ElementsAre;
using testing::expect_error;

/// Keeps what it is given.
class Keeper final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "keeper"; }
  void store_init_configuration(const TrackedValues& values) override {
    config = values;
  }
  void log(const TrackedValues& values, const LogTime&, const TrackedValues&)
      override {
    logged.push_back(TrackedValue(values).str());
  }
  bool log_images(
      const std::string&,
      const TrackedImages& each,
      const LogTime&,
      const TrackedValues& given) override {
    images = each;
    image_options = given;
    return true;
  }
  bool log_figure(
      const std::string&,
      const std::string& each,
      const LogTime&,
      const TrackedValues&) override {
    svg = each;
    return true;
  }
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

TEST_F(TrackingFacade, LogsImagesAndFigures) {
  const Accelerator accelerator(options());
  accelerator.init_trackers("p");
  accelerator.log_images("i", torch::ones({2, 3, 4, 5}), 1);
  accelerator.log_figure(
      "f", Figure{.series = {{.name = "s", .y = torch::tensor({1, 2})}}}, 1);
  accelerator.flush_trackers();
  EXPECT_EQ(keeper_->images.layout, "NCHW");
  EXPECT_EQ(keeper_->images.shape, (std::vector<std::int64_t>{2, 3, 4, 5}));
  EXPECT_TRUE(keeper_->images.is_float);
  EXPECT_THAT(keeper_->svg, ::testing::HasSubstr("<polyline"));
  accelerator.end_training();
}

TEST_F(TrackingFacade, TakesTheLayoutAndOptionsOfImages) {
  const Accelerator accelerator(options());
  accelerator.init_trackers("p");
  // Either dimension could be that of channels.
  accelerator.log_images(
      "i",
      torch::ones({3, 4, 3}),
      1,
      {.layout = "HWC", .log_kwargs = {{"keeper", {{"caption", "c"}}}}});
  accelerator.flush_trackers();
  EXPECT_EQ(keeper_->images.layout, "HWC");
  EXPECT_EQ(keeper_->image_options, (TrackedValues{{"caption", "c"}}));
  accelerator.log_images("i", torch::ones({3, 4, 3}), 2);
  accelerator.flush_trackers();
  EXPECT_EQ(keeper_->images.layout, "CHW");
  EXPECT_EQ(keeper_->image_options, TrackedValues());
}

TEST_F(TrackingFacade, NamesTheRunAsItIsTold) {
  const auto scope = patch_environment({{"ACCELERATE_RUN_NAME", "variable"}});
  EXPECT_EQ(
      Accelerator(options()).run_dir(), directory_ / "variable");
  AcceleratorOptions named = options();
  named.run_name = "code";
  EXPECT_EQ(Accelerator(named).run_dir(), directory_ / "code");
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
  accelerator.log({{"a", 1}}, 1);
  accelerator.end_training();
  EXPECT_EQ(accelerator.run_dir(), directory_ / "logs" / "r");
  EXPECT_THAT(points(directory_ / "logs" / "r"), ElementsAre("1:1"));
}

TEST_F(TrackingFacade, RefusesWhatCannotBeLogged) {
  const Accelerator accelerator(options());
  expect_error<ConfigError>(
      [&] { accelerator.log({{"a", torch::Tensor()}}, 1); }, "undefined");
  expect_error<ConfigError>(
      [&] { accelerator.log_images("i", torch::ones({2}), 1); },
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
    run = first.run_dir();
    for (int step = 1; step <= 2; ++step) first.log({{"a", 1.0 * step}}, step);
    first.save_state(directory_ / "saved");
    first.log({{"a", 3.0}}, 3);
  }
  const Accelerator second(options());
  EXPECT_NE(second.run_dir(), run);
  second.load_state(directory_ / "saved");
  EXPECT_EQ(second.run_dir(), run);
  second.log({{"a", 30.0}}, 3);
  second.end_training();
  EXPECT_THAT(points(run), ElementsAre("1:1.0", "2:2.0", "3:30.0"));
}

}  // namespace tracking_test
}  // namespace
}  // namespace accelerate
