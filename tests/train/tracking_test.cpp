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
      const TrackedValues&) override {
    images = each;
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
