#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/recorded_cases.h"
#include "support/temporary_directory.h"
#include "trackers/tracker_request.h"

namespace accelerate {
namespace {
namespace dvclive_test {

using detail::read_file;
using nlohmann::json;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Dvclive : public ::testing::Test {
 protected:
  std::unique_ptr<GeneralTracker> make(TrackedValues more = {}) {
    detail::TrackerRequest request;
    request.project_name = "p";
    request.init_kwargs = {{"dir", (directory_ / "live").string()}};
    for (NamedValue& each : more) request.init_kwargs.push_back(each);
    request.environment = environment_;
    request.warn = [this](const std::string& text) {
      warnings_.push_back(text);
    };
    return detail::make_dvclive(request);
  }
  std::unique_ptr<GeneralTracker> started(TrackedValues more = {}) {
    auto tracker = make(std::move(more));
    tracker->start();
    return tracker;
  }
  std::string file(const std::string& name) {
    return read_file(directory_ / "live" / name);
  }
  bool exists(const std::string& name) {
    return std::filesystem::exists(directory_ / "live" / name);
  }

  testing::TemporaryDirectory directory_;
  detail::Environment environment_;
  std::vector<std::string> warnings_;
};

TEST_F(Dvclive, WritesWhatPythonWrote) {
  testing::expect_recorded_outcomes("dvclive", 18);
}

TEST_F(Dvclive, RowsAreVisibleAfterFlush) {
  const auto tracker = started();
  tracker->log({{"loss", 0.5}}, {.step = 3}, {});
  EXPECT_FALSE(exists("metrics.json"));
  tracker->flush();
  EXPECT_EQ(file("plots/metrics/loss.tsv"), "step\tloss\n3\t0.5\n");
  tracker->log({{"loss", 0.25}}, {}, {});
  tracker->flush();
  EXPECT_EQ(file("plots/metrics/loss.tsv"), "step\tloss\n3\t0.5\n4\t0.25\n");
  EXPECT_EQ(
      file("metrics.json"), "{\n    \"loss\": 0.25,\n    \"step\": 4\n}\n");
}

TEST_F(Dvclive, AFileThatCannotBeWrittenLeavesTheOthersAlone) {
  const std::string path = (directory_ / "dvc.yaml").string();
  const auto tracker = started({{"dvcyaml", path}});
  std::filesystem::create_directories(
      directory_ / "live/plots/metrics/accuracy.tsv");
  tracker->log({{"accuracy", 1}, {"loss", 0.5}}, {.step = 3}, {});
  expect_error<Error>([&] { tracker->flush(); }, "accuracy.tsv");
  EXPECT_EQ(file("plots/metrics/loss.tsv"), "step\tloss\n3\t0.5\n");
  EXPECT_THAT(file("metrics.json"), HasSubstr("\"accuracy\": 1"));
  expect_error<Error>([&] { tracker->finish(); }, "accuracy.tsv");
  EXPECT_THAT(read_file(path), HasSubstr("live/metrics.json"));
}

TEST_F(Dvclive, ValuesThatNeedQuotesAndNumbersThatJsonLacks) {
  const auto tracker = started();
  tracker->log({{"note", "a\t\"b\"\nc"}, {"x", -INFINITY}}, {}, {});
  tracker->log({{"x", std::nan("")}}, {}, {});
  tracker->finish();
  EXPECT_EQ(
      file("plots/metrics/note.tsv"), "step\tnote\n0\t\"a\t\"\"b\"\"\nc\"\n");
  EXPECT_EQ(file("plots/metrics/x.tsv"), "step\tx\n0\t-inf\n1\tnan\n");
  EXPECT_EQ(json::parse(file("metrics.json")).at("x"), "nan");
}

TEST_F(Dvclive, WarnsOnceAboutWhatItCannotLog) {
  const auto tracker = started();
  for (int i = 0; i < 3; ++i)
    tracker->log({{"both", TrackedValues{{"a", 1}}}, {"loss", i}}, {}, {});
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("unlike \"both\"")));
}

TEST_F(Dvclive, TimestampsAndValuesWithoutPlot) {
  const auto tracker = started();
  const LogTime time{.step = 1, .seconds = 1700000000.125};
  tracker->log({{"a", 1}}, time, {{"timestamp", true}});
  tracker->log({{"b", 2}}, time, {{"plot", false}});
  tracker->finish();
  EXPECT_EQ(
      file("plots/metrics/a.tsv"), "timestamp\tstep\ta\n1700000000125\t1\t1\n");
  EXPECT_FALSE(exists("plots/metrics/b.tsv"));
  EXPECT_EQ(json::parse(file("metrics.json")).at("b"), 2);
}

TEST_F(Dvclive, BeginsAnew) {
  const auto first = started();
  first->store_init_configuration({{"lr", 0.1}});
  first->log({{"old", 1}}, {}, {});
  first->finish();
  started()->finish();
  EXPECT_FALSE(exists("plots/metrics/old.tsv"));
  EXPECT_FALSE(exists("params.yaml"));
  EXPECT_EQ(file("metrics.json"), "{\n    \"step\": 0\n}\n");
}

TEST_F(Dvclive, ResumesAfterTheLastStep) {
  const auto first = started();
  first->store_init_configuration(
      {{"lr", 1e-5}, {"text", "1"}, {"list", TrackedValue::List{1, true}}});
  first->log({{"train/loss", 3}}, {.step = 7}, {});
  first->finish();
  environment_.set("DVCLIVE_RESUME", "1");
  const auto second = started();
  second->store_init_configuration({{"lr", 0.5}, {"new", TrackedValue()}});
  second->log({{"train/loss", 2}}, {}, {});
  second->finish();
  EXPECT_EQ(file("plots/metrics/train/loss.tsv"), "step\tloss\n7\t3\n8\t2\n");
  EXPECT_EQ(
      file("params.yaml"), "lr: 0.5\ntext: '1'\nlist:\n- 1\n- true\nnew:\n");
  EXPECT_EQ(json::parse(file("metrics.json")).at("step"), 8);
}

TEST_F(Dvclive, ResumesAtTheLastStepThatThereIs) {
  detail::replace_file(
      directory_ / "live" / "metrics.json", R"({"step": 9223372036854775807})");
  const auto tracker = started({{"resume", true}});
  tracker->log({{"a", 1}}, {}, {});
  tracker->finish();
  EXPECT_EQ(file("plots/metrics/a.tsv"), "step\ta\n9223372036854775807\t1\n");
}

TEST_F(Dvclive, RefusesToResumeFromSomethingElse) {
  detail::replace_file(directory_ / "live" / "metrics.json", "[1");
  expect_error<ConfigError>(
      [&] { started({{"resume", true}}); }, "must be a JSON object");
  // Writing it again would take more stack than there is.
  constexpr std::size_t kDepth = 1'000'000;
  detail::replace_file(
      directory_ / "live" / "metrics.json",
      "{\"a\":" + std::string(kDepth, '[') + std::string(kDepth, ']') + "}");
  expect_error<ConfigError>(
      [&] { started({{"resume", true}}); }, "must be a JSON object");
}

TEST_F(Dvclive, ImagesAndFigures) {
  const auto tracker = started();
  const TrackedImages one{.shape = {1, 1}, .layout = "HW", .values = "\x7f"};
  EXPECT_TRUE(tracker->log_images("one", one, {.step = 4}, {}));
  EXPECT_TRUE(tracker->log_images("named.png", one, {.step = 4}, {}));
  const TrackedImages two{
      .shape = {2, 1, 1, 1}, .layout = "NHWC", .values = "\x7f\x01"};
  EXPECT_TRUE(tracker->log_images("two", two, {.step = 4}, {}));
  EXPECT_TRUE(tracker->log_figure("curve", "<svg/>", {.step = 4}, {}));
  for (const char* const name :
       {"one/4.png", "named.png", "two/0/4.png", "two/1/4.png"}) {
    EXPECT_THAT(file(std::string("plots/images/") + name), HasSubstr("PNG"))
        << name;
  }
  EXPECT_EQ(file("plots/images/curve/4.svg"), "<svg/>");
}

TEST_F(Dvclive, CopiesArtifacts) {
  detail::replace_file(directory_ / "model" / "weights", "w");
  const auto tracker = started();
  tracker->log_artifact((directory_ / "model").string(), "");
  tracker->log_artifact((directory_ / "model/").string(), "best");
  EXPECT_EQ(file("artifacts/model/weights"), "w");
  EXPECT_EQ(file("artifacts/best/model/weights"), "w");
  expect_error<Error>(
      [&] { tracker->log_artifact((directory_ / "no").string(), ""); },
      "cannot copy");
}

TEST_F(Dvclive, NamesStayBelowTheDirectory) {
  const auto tracker = started();
  for (const char* const name : {"../loss", "/loss", "a/../../loss"}) {
    expect_error<Error>(
        [&] { tracker->log({{name, 1}}, {}, {}); },
        "cannot be the name of a file");
  }
}

TEST_F(Dvclive, TellsDvcOfItsFilesOnRequest) {
  const std::string path = (directory_ / "dvc.yaml").string();
  const auto tracker = started({{"dvcyaml", path}});
  tracker->store_init_configuration({{"lr", 0.1}});
  tracker->log({{"loss", 1}}, {}, {});
  tracker->finish();
  EXPECT_EQ(
      read_file(path),
      "params:\n- live/params.yaml\nmetrics:\n- live/metrics.json\n"
      "plots:\n- live/plots/metrics:\n    x: step\n");
  expect_error<ConfigError>(
      [&] { make({{"dvcyaml", path}}); }, "exists and is not changed");
}

TEST_F(Dvclive, SaysWhatNeedsDvc) {
  make({{"report", "md"}, {"save_dvc_exp", false}, {"exp_name", "e"}});
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("so report, exp_name of its")));
  warnings_.clear();
  make({{"save_dvc_exp", false}});
  EXPECT_THAT(warnings_, IsEmpty());
  expect_error<ConfigError>(
      [&] { make({{"dirs", "x"}}); }, "dvclive's init_kwargs have \"dirs\"");
}

}  // namespace dvclive_test
}  // namespace
}  // namespace accelerate
