#include <any>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <sys/wait.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/encoding.h"
#include "support/expect_error.h"
#include "support/python_calls.h"
#include "support/recorded_cases.h"
#include "support/temporary_directory.h"
#include "trackers/python/python_json.h"
#include "trackers/python/python_tracker.h"
#include "trackers/python/tracker_process.h"

namespace accelerate {
namespace {
namespace python_trackers_test {

using nlohmann::json;
using testing::expect_error;

class PythonTrackers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::python_for_tests().empty())
      GTEST_SKIP() << "there is no python3";
  }
  /// Writes a package of our own that replaces the recording one.
  void write_package(const std::string& name, const std::string& text) {
    detail::replace_file(directory_ / "own" / (name + ".py"), text);
    environment_.set(
        "PYTHONPATH",
        (directory_ / "own").string() + ":" +
            testing::fake_packages().string());
  }
  std::unique_ptr<GeneralTracker> make(
      const std::string& package,
      TrackedValues init_kwargs = {}) {
    detail::TrackerRequest request;
    request.project_name = "p";
    request.logging_dir = directory_ / "logs";
    request.init_kwargs = std::move(init_kwargs);
    request.environment = environment_;
    return detail::make_python_tracker(request, package);
  }
  json calls() {
    return testing::recorded_python_calls(
        directory_ / "calls", directory_.path());
  }

  testing::TemporaryDirectory directory_;
  detail::Environment environment_ =
      testing::fake_package_environment(directory_ / "calls");
};

TEST_F(PythonTrackers, MakeTheCallsThatAccelerateMakes) {
  for (const char* const kind :
       {"wandb", "comet_ml", "aim", "clearml", "swanlab", "trackio"})
    testing::expect_recorded_outcomes(kind, 6);
}

// A package can put anything into an exception's text.
TEST_F(PythonTrackers, MayAnswerWithAnyJson) {
  const std::pair<std::string, std::string> table[] = {
      {R"({"error": 7})", "failed (log): 7"},
      {R"({"error": ["a", null]})", R"(failed (log): ["a",null])"},
      {R"({"missing": {"a": 1}})", "needs the Python package {\"a\":1}"},
      {"[]", "must answer with JSON"},
      {"{", "must answer with JSON"}};
  for (const auto& [answer, phrase] : table) {
    SCOPED_TRACE(answer);
    // An interpreter that answers everything but the start with this line.
    const std::string program = directory_ / "answers";
    detail::replace_file(
        program,
        "#!" + testing::python_for_tests() +
            "\nimport socket, sys\n"
            "ends = socket.socket(fileno=int(sys.argv[3])).makefile('rw')\n"
            "for answer in '{\"ok\": 1}', '" +
            answer +
            "', '':\n"
            "  ends.readline()\n"
            "  ends.write(answer + chr(10))\n"
            "  ends.flush()\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    const auto tracker = make("wandb", {{"python", program}});
    tracker->start();
    expect_error<Error>(
        [&] { tracker->log({{"loss", 1.0}}, {1, 2}, {}); }, phrase);
  }
}

TEST_F(PythonTrackers, ImagesHaveTheirChannelsLast) {
  const auto tracker = make("wandb");
  tracker->start();
  const TrackedImages images{
      .shape = {1, 3, 2, 1}, .layout = "NCHW", .values = "abcdef"};
  EXPECT_TRUE(tracker->log_images("x", images, {}, {}));
  tracker->finish();
  EXPECT_EQ(
      calls().at(1),
      json::parse(R"(["wandb.Image", [{"array": ["uint8", [2, 1, 3]]}], {}])"));
}

TEST_F(PythonTrackers, AimGetsImagesOneByOneIfItRefusesABatch) {
  write_package("aim", R"(from recording import Recorder

def __getattr__(name):
    return Recorder(f"aim.{name}")

def Image(array, caption):
    if len(array.shape) != 3:
        raise TypeError("not an image")
    return array
)");
  const auto tracker = make("aim");
  tracker->start();
  const TrackedImages images{
      .shape = {2, 1, 1, 3}, .layout = "NHWC", .values = "abcdef"};
  tracker->log_images("x", images, {.step = 1}, {});
  tracker->finish();
  EXPECT_EQ(calls().at(2).at(1).at(0).size(), 2U);
}

TEST_F(PythonTrackers, LogKwargsGoToThePackage) {
  const auto tracker = make("comet_ml");
  tracker->start();
  tracker->log({{"a", 1}}, {.step = 2}, {{"epoch", 3}});
  tracker->finish();
  EXPECT_EQ(
      calls().at(2), json::parse(R"(["comet_ml.start().log_metric", ["a", 1],
                     {"step": 2, "epoch": 3}])"));
}

TEST_F(PythonTrackers, ClearMlMakesATaskIfThereIsNone) {
  write_package("clearml", R"(from recording import Recorder

class Task:
    current_task = staticmethod(lambda: None)
    init = Recorder("clearml.Task.init")
)");
  environment_.set("CLEARML_TASK", "named");
  const auto tracker = make("clearml");
  tracker->start();
  tracker->log({{"eval_loss", 1.5}}, {.step = 4}, {});
  tracker->finish();
  EXPECT_EQ(calls(), json::parse(R"([
    ["clearml.Task.init", [], {"project_name": "p", "task_name": "named"}],
    ["clearml.Task.init().get_logger", [], {}],
    ["clearml.Task.init().get_logger().report_scalar", [],
     {"title": "loss", "series": "eval", "value": 1.5, "iteration": 4}],
    ["clearml.Task.init().close", [], {}]])"));
}

TEST_F(PythonTrackers, SayWhichPackageIsMissing) {
  write_package(
      "comet_ml", "raise ModuleNotFoundError('no', name='comet_ml')\n");
  const auto tracker = make("comet_ml");
  expect_error<ConfigError>(
      [&] { tracker->start(); },
      "[trackers] comet_ml needs the Python package comet_ml, which " +
          testing::python_for_tests() +
          " lacks (pip install comet_ml); install it, or name another "
          "interpreter with");
}

TEST_F(PythonTrackers, WandbIsAskedForRunsThatAreOnline) {
  const auto online = [&](TrackedValues init_kwargs) {
    detail::TrackerRequest request;
    request.project_name = "p";
    request.init_kwargs = std::move(init_kwargs);
    request.environment = environment_;
    return detail::make_wandb(request);
  };
  const auto tracker = online({{"mode", "online"}, {"save_code", true}});
  tracker->start();
  tracker->finish();
  EXPECT_EQ(calls().at(0), json::parse(R"(["wandb.init", [],
          {"project": "p", "mode": "online", "save_code": true}])"));
  write_package("wandb", "raise ModuleNotFoundError('no', name='wandb')\n");
  environment_.set("WANDB_MODE", "online");
  expect_error<ConfigError>(
      [&] { online({})->start(); }, "or set WANDB_MODE=offline");
}

TEST_F(PythonTrackers, SayThatThereIsNoInterpreter) {
  environment_.set("ACCELERATE_PYTHON", "/no/python");
  expect_error<ConfigError>(
      [&] { make("aim")->start(); }, "no Python interpreter \"/no/python\"");
  expect_error<ConfigError>(
      [&] { make("aim", {{"python", "pythonx"}})->start(); },
      "no Python interpreter \"pythonx\"");
  expect_error<ConfigError>(
      [&] { make("aim", {{"python", 3}}); }, "path or name of an interpreter");
}

TEST_F(PythonTrackers, AnExceptionIsAnErrorAndTheNextCallWorks) {
  write_package("wandb", R"(class Run:
    def log(self, values, step):
        if "bad" in values:
            raise ValueError("not this")
    def finish(self):
        pass

def init(project):
    return Run()
)");
  const auto tracker = make("wandb");
  tracker->start();
  expect_error<Error>(
      [&] { tracker->log({{"bad", 1}}, {}, {}); }, "ValueError: not this");
  tracker->log({{"good", 1}}, {}, {});
  tracker->finish();
}

TEST_F(PythonTrackers, WhatThePackagePrintsDisturbsNothing) {
  write_package("wandb", R"(import os, sys

class Run:
    def log(self, values, step):
        print('{"error": "printed"}', flush=True)
        os.system('echo "{}" >&2')
        assert sys.stdin.read() == ""
    def finish(self):
        pass

def init(project):
    return Run()
)");
  const auto tracker = make("wandb");
  tracker->start();
  for (int i = 0; i < 3; ++i) tracker->log({{"a", i}}, {}, {});
  tracker->finish();
}

TEST_F(PythonTrackers, TheEndOfTheProcessIsReportedOnce) {
  write_package("wandb", R"(import os

class Run:
    def log(self, values, step):
        os._exit(3)

def init(project):
    return Run()
)");
  const auto tracker = make("wandb");
  tracker->start();
  expect_error<Error>(
      [&] { tracker->log({{"a", 1}}, {}, {}); }, "Python process has ended");
  tracker->log({{"a", 1}}, {}, {});
  tracker->finish();
}

TEST_F(PythonTrackers, AnInterruptLeavesTheRunToThisProcess) {
  const auto tracker = make("swanlab");
  tracker->start();
  ASSERT_EQ(::kill(std::any_cast<int>(tracker->tracker()), SIGINT), 0);
  tracker->log({{"a", 1}}, {}, {});
  tracker->finish();
  EXPECT_EQ(calls().back().at(0), "swanlab.init().finish");
}

TEST_F(PythonTrackers, TheRunIsFinishedIfThisProcessDoesNot) {
  auto tracker = make("wandb");
  tracker->start();
  const int process = std::any_cast<int>(tracker->tracker());
  tracker.reset();
  ::waitpid(process, nullptr, 0);
  EXPECT_EQ(calls().back().at(0), "wandb.init().finish");
}

TEST_F(PythonTrackers, AProcessThatDoesNotAnswerIsEnded) {
  write_package("wandb", "import signal\nsignal.pause()\n");
  detail::TrackerProcess process(
      {.environment = environment_, .longest_wait = std::chrono::seconds(1)});
  expect_error<Error>(
      [&] {
        process.ask(R"({"do": "start", "package": "wandb", "project": "p", )"
                    R"("logging_dir": "", "init_kwargs": {}})");
      },
      "has not answered for 1 s");
  EXPECT_FALSE(process.is_running());
}

TEST_F(PythonTrackers, AimNeedsADirectory) {
  detail::TrackerRequest request;
  request.environment = environment_;
  expect_error<ConfigError>(
      [&] { detail::make_aim(request); }, "set ProjectConfiguration");
}

TEST_F(PythonTrackers, KnowTheirRanks) {
  EXPECT_FALSE(make("wandb")->main_process_only());
  EXPECT_FALSE(make("swanlab")->main_process_only());
  EXPECT_TRUE(make("comet_ml")->main_process_only());
  EXPECT_TRUE(make("clearml")->main_process_only());
  EXPECT_TRUE(make("aim")->requires_logging_directory());
}

TEST(PythonJson, WritesWhatPythonReads) {
  EXPECT_EQ(
      detail::python_json(TrackedValues{
          {"a\n", TrackedValue::List{1, 2.0, true, TrackedValue()}},
          {"\xc3\xa9", INFINITY}}),
      "{\"a\\n\": [1, 2.0, true, null], \"\\u00e9\": Infinity}");
}

TEST(PythonJson, Base64PadsTheEnd) {
  EXPECT_EQ(detail::base64(""), "");
  EXPECT_EQ(detail::base64("M"), "TQ==");
  EXPECT_EQ(detail::base64("Ma"), "TWE=");
  EXPECT_EQ(detail::base64("Man"), "TWFu");
  EXPECT_EQ(detail::base64(std::string("\0\xff\xfe", 3)), "AP/+");
}

}  // namespace python_trackers_test
}  // namespace
}  // namespace accelerate
