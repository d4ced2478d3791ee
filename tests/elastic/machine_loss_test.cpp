// Groups on several machines, simulated by launchers on this machine, that lose
// a machine and its memory.
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tool.h"
#include "elastic/curve.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace elastic_test {

using ::testing::HasSubstr;
using testing::Tool;
using testing::ToolResult;

namespace {

/// The launchers of a run of elastic_rank that keeps a state in memory every
/// three steps.
class MachineGroup {
 public:
  MachineGroup(
      std::filesystem::path directory,
      int num_machines,
      int num_processes,
      int num_steps)
      : directory_(std::move(directory)),
        num_machines_(num_machines),
        num_processes_(num_processes),
        num_steps_(num_steps) {
    for (int machine = 0; machine < num_machines; ++machine)
      tools_.push_back(start(machine));
  }

  /// Reads machine 0's output up to a step not before `least` at which machine
  /// 0 has a copy of state `state` or a later one. Returns false if the output
  /// ends first.
  bool await(int least, int state) {
    while (true) {
      const std::string line = tools_[0]->read_line();
      if (line.empty()) return false;
      const std::size_t place = line.find("step ");
      if (place == std::string::npos) continue;
      if (std::stoi(line.substr(place + 5)) >= least && has_copy(state))
        return true;
    }
  }
  void kill(int machine) {
    Tool& tool = *tools_[static_cast<std::size_t>(machine)];
    ::kill(tool.pid(), SIGKILL);
    tool.wait();
  }
  void bring_back(int machine) {
    tools_[static_cast<std::size_t>(machine)] = start(machine);
  }
  ToolResult wait(int machine) {
    return tools_[static_cast<std::size_t>(machine)]->wait();
  }

 private:
  std::unique_ptr<Tool> start(int machine) {
    return std::make_unique<Tool>(std::vector<std::string>{
        "launch",
        "--num_machines",
        std::to_string(num_machines_),
        "--num_processes",
        std::to_string(num_processes_),
        "--main_process_ip",
        "127.0.0.1",
        "--main_process_port",
        port_,
        "--machine_rank",
        std::to_string(machine),
        "--max_restarts",
        "5",
        "--redundancy",
        "neighbour",
        "--redundancy_steps",
        "3",
        ELASTIC_RANK,
        directory_.string(),
        "elastic",
        std::to_string(num_steps_),
        "1"});
  }
  // Whether machine 0 holds a copy of state number `state` or a later one.
  [[nodiscard]] bool has_copy(int state) const {
    const std::string end = "-" + std::to_string(tools_[0]->pid());
    const std::string mark = "_state_";
    std::error_code error;
    for (const auto& memory :
         std::filesystem::directory_iterator("/dev/shm", error)) {
      const std::string name = memory.path().filename().string();
      if (!name.starts_with("accelerate-cpp-") || !name.ends_with(end))
        continue;
      for (const auto& entry :
           std::filesystem::recursive_directory_iterator(memory, error)) {
        const std::string path = entry.path().string();
        const std::size_t place = path.rfind(mark);
        if (path.find("/copies/generation_") == std::string::npos ||
            place == std::string::npos || !path.ends_with("/manifest.json"))
          continue;
        if (std::stoi(path.substr(place + mark.size())) >= state) return true;
      }
    }
    return false;
  }

  std::filesystem::path directory_;
  int num_machines_;
  int num_processes_;
  int num_steps_;
  std::string port_ = testing::free_port();
  std::vector<std::unique_ptr<Tool>> tools_;
};

Curve undisturbed_curve(int num_steps) {
  const testing::TemporaryDirectory directory;
  const ToolResult result = testing::run_tool(
      {"launch",
       "--num_processes",
       "2",
       ELASTIC_RANK,
       directory.path().string(),
       "elastic",
       std::to_string(num_steps),
       "1"});
  EXPECT_EQ(result.code, 0) << result.err;
  return read_curve(directory.path());
}

void expect_same_but_for_rounding(const Curve& curve, const Curve& other) {
  ASSERT_EQ(curve.size(), other.size());
  for (const auto& [number, step] : curve) {
    EXPECT_EQ(step.samples, other.at(number).samples) << "step " << number;
    EXPECT_NEAR(step.loss, other.at(number).loss, 1e-6) << "step " << number;
  }
}

}  // namespace

TEST(MachineLoss, LosesNothingThatTheNeighbourHolds) {
  constexpr int kSteps = 100;
  const testing::TemporaryDirectory directory;
  MachineGroup group(directory.path(), 2, 2, kSteps);
  // The project's checkpoint, of step 10, is older.
  ASSERT_TRUE(group.await(14, 3));
  group.kill(1);
  group.bring_back(1);
  const ToolResult first = group.wait(0);
  const ToolResult second = group.wait(1);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  // Machine 1 may have saved a newer state that was not copied yet.
  const std::string begin = "resuming from state ";
  const std::size_t place = first.err.find(begin);
  ASSERT_NE(place, std::string::npos) << first.err;
  EXPECT_GE(std::stoi(first.err.substr(place + begin.size())), 3) << first.err;
  EXPECT_THAT(
      first.err, HasSubstr("its part came back to machine 1 from machine 0"));
  const Curve curve = read_curve(directory.path());
  expect_each_sample_once(curve);
  EXPECT_EQ(curve, undisturbed_curve(kSteps));
}

TEST(MachineLoss, FallsBackToTheCheckpointIfTheNeighbourIsLostToo) {
  constexpr int kSteps = 60;
  const testing::TemporaryDirectory directory;
  MachineGroup group(directory.path(), 3, 6, kSteps);
  ASSERT_TRUE(group.await(14, 1));
  group.kill(1);
  group.kill(2);
  group.bring_back(2);
  group.bring_back(1);
  std::vector<ToolResult> results;
  for (int machine = 0; machine < 3; ++machine) {
    results.push_back(group.wait(machine));
    EXPECT_EQ(results.back().code, 0) << results.back().err;
  }
  EXPECT_THAT(
      results[0].err,
      HasSubstr("no machine holds machine 1's part of it; resuming from the "
                "newest checkpoint of the project"));
  const Curve curve = read_curve(directory.path());
  expect_each_sample_once(curve);
  expect_same_but_for_rounding(curve, undisturbed_curve(kSteps));
}

TEST(MachineLoss, AllGoOnFromTheCheckpointWithoutTheMachineOfTheStore) {
  constexpr int kSteps = 40;
  const testing::TemporaryDirectory directory;
  {
    MachineGroup group(directory.path(), 2, 2, 100000);
    ASSERT_TRUE(group.await(14, 1));
    group.kill(0);
    const ToolResult result = group.wait(1);
    EXPECT_NE(result.code, 0);
    EXPECT_THAT(
        result.err, HasSubstr("machine 0, which keeps the store, is gone"));
  }
  MachineGroup group(directory.path(), 2, 2, kSteps);
  for (const int machine : {0, 1}) {
    const ToolResult result = group.wait(machine);
    EXPECT_EQ(result.code, 0) << result.err;
  }
  const Curve curve = read_curve(directory.path());
  expect_each_sample_once(curve);
  EXPECT_EQ(curve, undisturbed_curve(kSteps));
}

}  // namespace elastic_test
}  // namespace accelerate
