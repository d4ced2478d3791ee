#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "cli/tool.h"
#include "elastic/curve.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace elastic_test {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using testing::Tool;
using testing::ToolResult;

struct Generation {
  int number = -1;
  std::vector<int> processes;
};

/// One run of elastic_rank.
class Program {
 public:
  Program(
      const std::vector<std::string>& flags,
      const std::vector<std::string>& job)
      : tool_(words(flags, directory_.path(), job)) {}
  Program(
      const std::filesystem::path& directory,
      const std::vector<std::string>& flags,
      const std::vector<std::string>& job)
      : tool_(words(flags, directory, job)) {}

  /// Reads output up to the beginning of the next generation.
  Generation next_generation() {
    const std::string mark = "generation ";
    Generation found;
    const std::string line = read_to(mark);
    if (line.empty()) return found;
    std::istringstream words(line.substr(line.find(mark) + mark.size()));
    char colon = 0;
    words >> found.number >> colon;
    for (int process = 0; words >> process;) found.processes.push_back(process);
    return found;
  }
  /// Reads output up to a line that contains `mark`; empty if the run ended
  /// before it.
  std::string read_to(const std::string& mark) {
    while (true) {
      const std::string line = tool_.read_line();
      if (line.empty() || line.find(mark) != std::string::npos) return line;
    }
  }
  [[nodiscard]] pid_t pid() const { return tool_.pid(); }
  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_.path();
  }
  ToolResult wait() { return tool_.wait(); }
  [[nodiscard]] Curve curve() const { return read_curve(directory()); }

 private:
  static std::vector<std::string> words(
      const std::vector<std::string>& flags,
      const std::filesystem::path& directory,
      const std::vector<std::string>& job) {
    std::vector<std::string> all{"launch"};
    all.insert(all.end(), flags.begin(), flags.end());
    all.insert(all.end(), {ELASTIC_RANK, directory.string()});
    all.insert(all.end(), job.begin(), job.end());
    return all;
  }

  testing::TemporaryDirectory directory_;
  Tool tool_;
};

const Curve& undisturbed() {
  static const Curve curve = [] {
    Program run({"--num_processes", "2"}, {"elastic", "20", "1"});
    const ToolResult result = run.wait();
    EXPECT_EQ(result.code, 0) << result.err;
    return run.curve();
  }();
  return curve;
}

std::vector<std::string> replacing(const std::string& restarts = "1") {
  return {
      "--num_processes",
      "2",
      "--max_restarts",
      restarts,
      "--redundancy",
      "neighbour",
      "--redundancy_steps",
      "3"};
}

int common(const Generation& a, const Generation& b) {
  int count = 0;
  for (const int process : a.processes) {
    for (const int other : b.processes) count += process == other ? 1 : 0;
  }
  return count;
}

TEST(Elastic, ReplacesOneRankAndKeepsTheOther) {
  Program run(replacing(), {"elastic", "20", "1", "1", "1", "saved", "8"});
  const Generation first = run.next_generation();
  const Generation second = run.next_generation();
  // The run resumes from the state after step 6.
  EXPECT_THAT(run.read_to("step "), HasSubstr("step 7"));
  const pid_t launcher = run.pid();
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(first.number, 1);
  EXPECT_EQ(second.number, 2);
  ASSERT_THAT(second.processes, SizeIs(2));
  EXPECT_EQ(second.processes[0], first.processes[0]);
  EXPECT_NE(second.processes[1], first.processes[1]);
  EXPECT_EQ(run.curve(), undisturbed());
  expect_each_sample_once(run.curve());
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("rank 1 was killed by SIGKILL"),
          HasSubstr("takes the place of process"),
          Not(HasSubstr("have no effect in this program")),
          Not(HasSubstr("starting again"))));
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    EXPECT_FALSE(
        name.starts_with("accelerate-cpp-") &&
        name.ends_with("-" + std::to_string(launcher)))
        << name;
  }
}

TEST(Elastic, ReplacesAnyRankAtAnyPlace) {
  std::mt19937 random(20);
  const std::vector<std::string> places{
      "data", "backward", "step", "throw", "start"};
  for (int trial = 0; trial < ELASTIC_TRIALS; ++trial) {
    const std::string place =
        places[static_cast<std::size_t>(trial) % places.size()];
    const std::string rank = std::to_string(random() % 2);
    const std::string step =
        place == "start" ? "0" : std::to_string(1 + random() % 19);
    // A group whose ranks have not all arrived is restarted as a whole, so a
    // death at "start" is in the second generation, which another death begins.
    std::vector<std::string> job{"elastic", "20", "1"};
    if (place == "start") {
      job.insert(job.end(), {"1", "1", "step", "5", "2", rank, place, step});
    } else {
      job.insert(job.end(), {"1", rank, place, step});
    }
    Program run(replacing("2"), job);
    const Generation first = run.next_generation();
    Generation last;
    for (Generation next = run.next_generation(); next.number > 0;
         next = run.next_generation())
      last = next;
    const ToolResult result = run.wait();
    SCOPED_TRACE(
        "rank " + rank + " at " + place + " of step " + step + "\n" +
        result.err);
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(common(first, last), place == "start" && rank == "0" ? 0 : 1);
    EXPECT_EQ(run.curve(), undisturbed());
    EXPECT_THAT(result.err, Not(HasSubstr("starting again")));
  }
}

TEST(Elastic, GoesBackToTheProjectsCheckpointWithoutStatesInMemory) {
  Program run(
      {"--num_processes", "2", "--max_restarts", "1"},
      {"elastic", "20", "1", "1", "0", "step", "14"});
  const Generation first = run.next_generation();
  const Generation second = run.next_generation();
  // Resumes from the checkpoint of the first epoch.
  EXPECT_THAT(run.read_to("step "), HasSubstr("step 11"));
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(second.processes[1], first.processes[1]);
  EXPECT_NE(second.processes[0], first.processes[0]);
  EXPECT_EQ(run.curve(), undisturbed());
}

TEST(Elastic, KeepsStatesWhereAndAsOftenAsCodeSays) {
  Program run(
      {"--num_processes", "2", "--max_restarts", "1"},
      {"code", "20", "1", "1", "1", "saved", "6"});
  run.next_generation();
  run.next_generation();
  // States were kept after steps 2 and 4.
  EXPECT_THAT(run.read_to("step "), HasSubstr("step 5"));
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(run.curve(), undisturbed());
  EXPECT_TRUE(std::filesystem::exists(run.directory() / "memory"));
}

TEST(Elastic, EndsWhenNoRestartIsLeft) {
  Program run(
      replacing(),
      {"elastic", "20", "1", "1", "1", "step", "4", "2", "1", "step", "5"});
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("was killed by SIGKILL"));
}

TEST(Elastic, PassesOnWhatIsNotALostPeer) {
  Program run(
      {"--num_processes", "2"}, {"elastic", "20", "1", "1", "1", "throw", "4"});
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("out of luck"));
}

TEST(Elastic, RestartsAProgramWithoutItAsAWhole) {
  Program run(replacing(), {"plain", "20", "1", "1", "1", "start", "0"});
  EXPECT_EQ(run.next_generation().number, 0);
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("starting again, 1 of at most 1 time"));
  EXPECT_THAT(result.err, HasSubstr("redundancy"));
}

TEST(Elastic, GroupOfFewerGoesOnWithoutARankThatCannotBeReplaced) {
  Program run(
      {"--num_processes", "2:3", "--redundancy", "neighbour"},
      {"elastic", "20", "2", "1", "0", "backward", "14"});
  const Generation first = run.next_generation();
  const Generation second = run.next_generation();
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  ASSERT_THAT(first.processes, SizeIs(3));
  EXPECT_THAT(
      second.processes, ElementsAre(first.processes[1], first.processes[2]));
  expect_each_sample_once(run.curve());
}

void expect_close(const Curve& curve, const Curve& wanted) {
  for (const auto& [number, step] : curve) {
    if (!wanted.contains(number)) continue;
    EXPECT_EQ(step.samples, wanted.at(number).samples) << "step " << number;
    EXPECT_NEAR(step.loss, wanted.at(number).loss, 1e-6) << "step " << number;
  }
}

TEST(Elastic, ShrinksAndGrowsBetweenSteps) {
  Program run({"--num_processes", "2:3"}, {"elastic", "20", "3"});
  const Generation three = run.next_generation();
  ASSERT_THAT(three.processes, SizeIs(3));
  run.read_to("step 2");
  const auto resize = [&](const std::string& size) {
    const ToolResult asked =
        testing::run_tool({"resize", std::to_string(run.pid()), size});
    EXPECT_EQ(asked.code, 0) << asked.err;
  };
  resize("2");
  const Generation two = run.next_generation();
  EXPECT_THAT(
      two.processes, ElementsAre(three.processes[0], three.processes[1]));
  resize("3");
  const Generation again = run.next_generation();
  ASSERT_THAT(again.processes, SizeIs(3));
  EXPECT_EQ(again.processes[0], three.processes[0]);
  EXPECT_EQ(again.processes[1], three.processes[1]);
  EXPECT_NE(again.processes[2], three.processes[2]);
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  const Curve curve = run.curve();
  expect_each_sample_once(curve);
  Program fixed(
      {"--num_processes", "2"},
      {"elastic", std::to_string(curve.rbegin()->first), "1"});
  EXPECT_EQ(fixed.wait().code, 0);
  EXPECT_EQ(fixed.curve().size(), curve.size());
  expect_close(curve, fixed.curve());
}

// The number of samples in each step; the last step of an epoch has the rest.
std::vector<std::size_t> sizes_of(const Curve& curve) {
  std::vector<std::size_t> sizes;
  for (const auto& [number, step] : curve) sizes.push_back(step.samples.size());
  return sizes;
}

TEST(Elastic, KeepsTheBatchOfEachRankWhereItIsAskedTo) {
  Program run(
      {"--num_processes", "2:3", "--elastic_batch", "per_rank"},
      {"elastic", "8", "2"});
  run.next_generation();
  run.read_to("step 2");
  EXPECT_EQ(
      testing::run_tool({"resize", std::to_string(run.pid()), "2"}).code, 0);
  EXPECT_THAT(run.next_generation().processes, SizeIs(2));
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  const Curve curve = run.curve();
  const std::vector<std::size_t> sizes = sizes_of(curve);
  // Two batches of two samples per rank and step, whatever the number of ranks.
  const auto change = std::find_if(
      sizes.begin(), sizes.end(), [](std::size_t size) { return size != 12; });
  EXPECT_GE(change - sizes.begin(), 2);
  EXPECT_GE(sizes.end() - change, 4);
  std::multiset<int> seen;
  for (const auto& [number, step] : curve) {
    const bool is_before = number <= change - sizes.begin();
    seen.insert(step.samples.begin(), step.samples.end());
    const bool ends_epoch = seen.size() == 120;
    if (!is_before && !ends_epoch) {
      EXPECT_THAT(step.samples, SizeIs(8)) << "step " << number;
    }
    if (!ends_epoch) continue;
    EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 120U);
    seen.clear();
  }
}

TEST(Elastic, RefusesSizesThatItWasNotStartedFor) {
  Program run({"--num_processes", "2:3"}, {"elastic", "20", "2"});
  run.next_generation();
  const std::string process = std::to_string(run.pid());
  const ToolResult result = testing::run_tool({"resize", process, "4"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("it was started for 2 to 3"));
  testing::run_tool({"resize", process, "2"});
  EXPECT_EQ(run.wait().code, 0);
}

TEST(Elastic, GroupOfOneSizeKeepsIt) {
  Program run(replacing(), {"elastic", "1000000", "1"});
  run.next_generation();
  const ToolResult result =
      testing::run_tool({"resize", std::to_string(run.pid()), "1"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("does not change its size"));
  ::kill(run.pid(), SIGTERM);
  run.wait();
}

TEST(Elastic, SavesAndLeavesWhenItIsToldToEnd) {
  Program run(replacing(), {"elastic", "1000000", "1"});
  run.next_generation();
  run.read_to("step 13");
  ::kill(run.pid(), SIGTERM);
  const std::string left = run.read_to("preempted after step");
  const ToolResult result = run.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  EXPECT_THAT(result.out, HasSubstr("was preempted"));
  const std::string mark = "step ";
  const int last = std::stoi(left.substr(left.find(mark) + mark.size()));
  Program next(
      run.directory(),
      {"--num_processes", "2"},
      {"elastic", std::to_string(last + 2), "1"});
  EXPECT_THAT(
      next.read_to("step "), HasSubstr("step " + std::to_string(last + 1)));
  EXPECT_EQ(next.wait().code, 0);
}

TEST(Elastic, RangesThatCannotBeAreRefused) {
  const auto complaint = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words{"launch"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.emplace_back(ELASTIC_RANK);
    const ToolResult result = testing::run_tool(words);
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_THAT(
      complaint({"--num_processes", "3:2"}),
      HasSubstr("write --num_processes MIN:MAX, for example 2:3"));
  EXPECT_THAT(
      complaint({"--num_processes", "two:3"}),
      HasSubstr("a number, or the fewest and the most, such as 2:8"));
  EXPECT_THAT(
      complaint({"--num_processes", "0:3"}),
      HasSubstr("min_processes is \"0\""));
  EXPECT_THAT(
      complaint({"--num_processes", "2", "--elastic_batch", "each"}),
      HasSubstr("elastic_batch is \"each\""));
  const testing::TemporaryDirectory directory;
  const std::filesystem::path script = directory.path() / "train.py";
  std::ofstream(script) << "#!/usr/bin/env python3\n";
  permissions(script, std::filesystem::perms::owner_all);
  const auto python_complaint = [&](const std::string& flag,
                                    const std::string& value) {
    const ToolResult result = testing::run_tool(
        {"launch", "--num_processes", "2", flag, value, script.string()});
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_THAT(
      python_complaint("--redundancy", "neighbour"),
      HasSubstr("but this is a Python program"));
  EXPECT_THAT(
      python_complaint("--elastic_batch", "per_rank"),
      HasSubstr("--elastic_batch per_rank is for programs with run_elastic()"));
}

TEST(Elastic, DryRunShowsTheSizes) {
  const ToolResult result = testing::run_tool(
      {"launch", "--num_processes", "2:3", "--dry_run", ELASTIC_RANK});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("ranks: 3, and no fewer than 2\n"),
          HasSubstr("num_processes = 3  (flag --num_processes)"),
          HasSubstr("min_processes = 2  (flag --num_processes)")));
}

}  // namespace elastic_test
}  // namespace accelerate
