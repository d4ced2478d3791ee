// Groups whose machines, simulated by launchers on this machine, join and leave
// while they run.
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tool.h"
#include "elastic/curve.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace elastic_machines_test {

using elastic_test::Curve;
using elastic_test::expect_each_sample_once;
using elastic_test::read_curve;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using testing::Tool;
using testing::ToolResult;

constexpr int kTerminated = 128 + SIGTERM;

/// Launchers of one run of elastic_rank. Only machine 0's output is read.
class ElasticMachines {
 public:
  ElasticMachines(
      int num_machines,
      std::string sizes,
      std::vector<std::string> flags,
      std::vector<std::string> job,
      std::string kind = "elastic")
      : num_machines_(num_machines),
        sizes_(std::move(sizes)),
        flags_(std::move(flags)),
        job_(std::move(job)),
        kind_(std::move(kind)) {}

  void start(int machine) {
    std::vector<std::string> words{
        "launch",
        "--num_machines",
        std::to_string(num_machines_),
        "--num_processes",
        sizes_,
        "--main_process_ip",
        "127.0.0.1",
        "--main_process_port",
        port_,
        "--machine_rank",
        std::to_string(machine)};
    words.insert(words.end(), flags_.begin(), flags_.end());
    words.insert(
        words.end(), {ELASTIC_RANK, directory_.path().string(), kind_});
    words.insert(words.end(), job_.begin(), job_.end());
    tools_[machine] = std::make_unique<Tool>(words);
  }
  void start_all() {
    for (int machine = 0; machine < num_machines_; ++machine) start(machine);
  }
  /// The processes of the next generation, rank 0's first; empty if the run
  /// ends before it.
  std::vector<int> next_generation(int number) {
    const std::string mark = "generation " + std::to_string(number) + ":";
    const std::string line = read_to("generation ");
    EXPECT_THAT(line, HasSubstr(mark));
    if (line.find(mark) == std::string::npos) return {};
    std::istringstream words(line.substr(line.find(mark) + mark.size()));
    std::vector<int> processes;
    for (int process = 0; words >> process;) processes.push_back(process);
    return processes;
  }
  std::string read_to(const std::string& mark) {
    while (true) {
      const std::string line = tools_.at(0)->read_line();
      if (line.empty() || line.find(mark) != std::string::npos) return line;
    }
  }
  void signal(int machine, int signal) const {
    ::kill(tools_.at(machine)->pid(), signal);
  }
  [[nodiscard]] std::string process(int machine) const {
    return std::to_string(tools_.at(machine)->pid());
  }
  ToolResult wait(int machine) { return tools_.at(machine)->wait(); }
  void expect_success(int machine) {
    const ToolResult result = wait(machine);
    EXPECT_EQ(result.code, 0) << "machine " << machine << ": " << result.err;
  }
  /// Expects that each sample was seen once per epoch, and that losses equal
  /// those of two undisturbed ranks up to rounding.
  void expect_undisturbed_curve() const {
    const Curve curve = read_curve(directory_.path());
    expect_each_sample_once(curve);
    const testing::TemporaryDirectory other;
    const ToolResult result = testing::run_tool(
        {"launch",
         "--num_processes",
         "2",
         ELASTIC_RANK,
         other.path().string(),
         "elastic",
         std::to_string(curve.rbegin()->first),
         "1"});
    ASSERT_EQ(result.code, 0) << result.err;
    const Curve wanted = read_curve(other.path());
    ASSERT_EQ(curve.size(), wanted.size());
    for (const auto& [number, step] : curve) {
      EXPECT_EQ(step.samples, wanted.at(number).samples) << "step " << number;
      EXPECT_NEAR(step.loss, wanted.at(number).loss, 1e-6) << "step " << number;
    }
  }

 private:
  testing::TemporaryDirectory directory_;
  int num_machines_;
  std::string sizes_;
  std::vector<std::string> flags_;
  std::vector<std::string> job_;
  std::string kind_;
  std::string port_ = testing::free_port();
  std::map<int, std::unique_ptr<Tool>> tools_;
};

const std::vector<std::string> kNeighbour{
    "--redundancy",
    "neighbour",
    "--redundancy_steps",
    "3"};

std::vector<std::string> with_restarts(const std::string& number) {
  std::vector<std::string> flags{"--max_restarts", number};
  flags.insert(flags.end(), kNeighbour.begin(), kNeighbour.end());
  return flags;
}

TEST(ElasticMachines, LeaveAndJoinBetweenSteps) {
  ElasticMachines group(2, "1:2", {}, {"20", "3"}, "unsaved");
  group.start_all();
  const std::vector<int> both = group.next_generation(1);
  ASSERT_THAT(both, SizeIs(2));
  group.read_to("step 2");
  group.signal(1, SIGTERM);
  EXPECT_THAT(group.next_generation(2), ElementsAre(both[0]));
  const ToolResult left = group.wait(1);
  EXPECT_EQ(left.code, kTerminated) << left.err;
  EXPECT_THAT(
      left.err, HasSubstr("this machine leaves the group after the next step"));
  EXPECT_THAT(left.out, HasSubstr("left"));
  group.start(1);
  const std::vector<int> again = group.next_generation(3);
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0], both[0]);
  EXPECT_NE(again[1], both[1]);
  group.expect_success(0);
  group.expect_success(1);
  group.expect_undisturbed_curve();
}

TEST(ElasticMachines, GoOnFromTheStateInMemoryWithoutOneThatDies) {
  ElasticMachines group(3, "2:3", kNeighbour, {"20", "3"}, "unsaved");
  group.start_all();
  const std::vector<int> all = group.next_generation(1);
  ASSERT_THAT(all, SizeIs(3));
  group.read_to("step 100");
  group.signal(1, SIGKILL);
  const std::vector<int> rest = group.next_generation(2);
  ASSERT_THAT(rest, ElementsAre(all[0], all[2]));
  const std::string line = group.read_to("step ");
  ASSERT_THAT(line, HasSubstr("step "));
  // Without the state, it would begin with the first step.
  EXPECT_GT(std::stoi(line.substr(line.find("step ") + 5)), 3);
  group.wait(1);
  group.start(1);
  const std::vector<int> again = group.next_generation(3);
  ASSERT_THAT(again, SizeIs(3));
  EXPECT_EQ(again[0], all[0]);
  EXPECT_EQ(again[2], all[2]);
  for (int machine = 0; machine < 3; ++machine) group.expect_success(machine);
  group.expect_undisturbed_curve();
}

TEST(ElasticMachines, ReplaceARankOnItsOwnMachine) {
  ElasticMachines group(
      2, "2:4", with_restarts("1"), {"20", "2", "1", "3", "backward", "8"});
  group.start_all();
  const std::vector<int> first = group.next_generation(1);
  const std::vector<int> second = group.next_generation(2);
  ASSERT_THAT(first, SizeIs(4));
  ASSERT_THAT(second, SizeIs(4));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(second[rank], first[rank]);
  EXPECT_NE(second[3], first[3]);
  const ToolResult other = group.wait(1);
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("takes the place of one that has ended"));
  group.expect_success(0);
}

TEST(ElasticMachines, LeaveOutOneWhoseRanksHaveEnded) {
  ElasticMachines group(
      2, "1:2", kNeighbour, {"20", "2", "1", "1", "step", "8"});
  group.start_all();
  const std::vector<int> both = group.next_generation(1);
  ASSERT_THAT(both, SizeIs(2));
  EXPECT_THAT(group.next_generation(2), ElementsAre(both[0]));
  const ToolResult out = group.wait(1);
  EXPECT_EQ(out.code, 1);
  EXPECT_THAT(
      out.err,
      AllOf(
          HasSubstr("was killed by SIGKILL"),
          HasSubstr("the other machines continue without this one")));
  group.expect_success(0);
  group.expect_undisturbed_curve();
}

TEST(ElasticMachines, SaveAndEndTogetherWhereTooFewWouldBeLeft) {
  ElasticMachines narrow(2, "3:4", {}, {"1000000", "1"});
  narrow.start_all();
  narrow.next_generation(1);
  narrow.read_to("step 3");
  narrow.signal(1, SIGTERM);
  narrow.read_to("was preempted");
  const ToolResult told = narrow.wait(1);
  EXPECT_EQ(told.code, kTerminated) << told.err;
  EXPECT_THAT(told.err, HasSubstr("cannot continue without this one"));
  narrow.expect_success(0);
}

TEST(ElasticMachines, EndWithTheFirst) {
  ElasticMachines group(2, "1:2", {}, {"1000000", "1"});
  group.start_all();
  group.next_generation(1);
  group.read_to("step 3");
  group.signal(0, SIGTERM);
  EXPECT_EQ(group.wait(0).code, kTerminated);
  group.expect_success(1);

  ElasticMachines killed(2, "1:2", {}, {"1000000", "1"});
  killed.start_all();
  killed.next_generation(1);
  killed.signal(0, SIGKILL);
  killed.wait(0);
  const ToolResult other = killed.wait(1);
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(
      other.err,
      HasSubstr("machine 0, which keeps the store, is gone, and the group "
                "cannot continue without it"));
}

TEST(ElasticMachines, BeginWithoutOneThatDoesNotCome) {
  ElasticMachines group(3, "2:3", {}, {"20", "2"});
  group.start(0);
  group.start(2);
  const std::vector<int> two = group.next_generation(1);
  ASSERT_THAT(two, SizeIs(2));
  group.start(1);
  const std::vector<int> three = group.next_generation(2);
  ASSERT_THAT(three, SizeIs(3));
  EXPECT_EQ(three[0], two[0]);
  EXPECT_EQ(three[2], two[1]);
  for (int machine = 0; machine < 3; ++machine) group.expect_success(machine);
  group.expect_undisturbed_curve();
}

TEST(ElasticMachines, StartAgainTogetherWithAProgramWithoutIt) {
  const testing::TemporaryDirectory directory;
  const std::string port = testing::free_port();
  std::vector<std::unique_ptr<Tool>> tools;
  for (const char* const machine : {"0", "1"}) {
    tools.push_back(std::make_unique<Tool>(std::vector<std::string>{
        "launch",
        "--num_machines",
        "2",
        "--num_processes",
        "1:2",
        "--main_process_ip",
        "127.0.0.1",
        "--main_process_port",
        port,
        "--machine_rank",
        machine,
        "--max_restarts",
        "1",
        "bash",
        "-c",
        "echo $RANK of $WORLD_SIZE; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || "
        "{ [ $RANK = 0 ] && exec sleep 1000; exit 5; }"}));
  }
  std::vector<ToolResult> results;
  for (const auto& tool : tools) results.push_back(tool->wait());
  for (const ToolResult& result : results) {
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("starting again, 1 of at most 1 time"));
  }
  EXPECT_THAT(
      results[0].err, HasSubstr("ranks on machine 1 failed with exit code 5"));
  EXPECT_THAT(results[1].err, HasSubstr("exited with code 5"));
  EXPECT_THAT(results[0].out, HasSubstr("0 of 2"));
  EXPECT_THAT(results[1].out, HasSubstr("1 of 2"));
}

TEST(ElasticMachines, RefuseWhatIsNotPossible) {
  const auto complaint = [](std::vector<std::string> flags) {
    std::vector<std::string> words{
        "launch", "--num_processes", "2:4", "--main_process_port", "29511"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.emplace_back(ELASTIC_RANK);
    const ToolResult result = testing::run_tool(words);
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_THAT(
      complaint(
          {"--num_machines", "2", "--main_process_ip", "127.0.0.1", "--check"}),
      HasSubstr("with --num_processes MIN:MAX some may join later"));
  EXPECT_THAT(
      complaint({"--num_machines", "3", "--main_process_ip", "127.0.0.1"}),
      HasSubstr("4 processes cannot be divided equally among 3 machines"));
  ElasticMachines group(2, "1:2", {}, {"1000000", "1"});
  group.start_all();
  group.next_generation(1);
  const ToolResult result =
      testing::run_tool({"resize", group.process(0), "1"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("is on several machines, and its size"));
  group.signal(0, SIGINT);
  EXPECT_EQ(group.wait(0).code, 128 + SIGINT);
  EXPECT_NE(group.wait(1).code, 0);
}

}  // namespace elastic_machines_test
}  // namespace accelerate
