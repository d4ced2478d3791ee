#include "launch/processes/supervisor.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text/text.h"
#include "launch/processes/exit_reason.h"
#include "launch/processes/start_process.h"

namespace accelerate::detail {
namespace supervisor_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Collects all output of a pipe.
class Heard final : public EventSource {
 public:
  explicit Heard(int pipe) : pipe_(pipe) {}
  Heard(const Heard&) = delete;
  Heard& operator=(const Heard&) = delete;
  ~Heard() override {
    if (pipe_ >= 0) ::close(pipe_);
  }

  [[nodiscard]] int descriptor() const override { return pipe_; }
  void read() override {
    char block[64];
    const ssize_t count = ::read(pipe_, block, sizeof block);
    if (count > 0) text.append(block, static_cast<std::size_t>(count));
    if (count == 0) ::close(std::exchange(pipe_, -1));
  }

  std::string text;

 private:
  int pipe_;
};

/// Ranks that are shell scripts; $1 is a descriptor whose output is collected.
class Scripts {
 public:
  explicit Scripts(const Supervisor::Options& options = {})
      : supervisor(options) {}

  void add(const std::string& script) {
    Pipe pipe;
    ProcessStart start;
    start.program = "/bin/sh";
    start.arguments = {
        "sh", "-c", script, "sh", std::to_string(pipe.write_end())};
    start.kept = pipe.write_end();
    const StartedProcess started = start_process(std::move(start));
    ASSERT_EQ(started.problem, 0);
    heard.emplace_back(pipe.release_read_end());
    supervisor.add(started.pid, {&heard.back()});
  }
  [[nodiscard]] std::string end_of(std::size_t rank) const {
    return describe_exit(supervisor.ranks()[rank].wait_status);
  }

  Supervisor supervisor;
  std::deque<Heard> heard;
};

TEST(Supervisor, ReturnsWhenAllHaveEnded) {
  Scripts scripts;
  scripts.add("echo one >&$1");
  scripts.add("echo two >&$1");
  scripts.supervisor.run();
  EXPECT_EQ(scripts.heard[0].text, "one\n");
  EXPECT_EQ(scripts.heard[1].text, "two\n");
  EXPECT_THAT(scripts.supervisor.failures(), IsEmpty());
}

TEST(Supervisor, EndsTheOthersWhenOneFails) {
  Scripts scripts;
  scripts.add("exec sleep 1000");
  scripts.add("exit 3");
  scripts.add("exec sleep 1000");
  scripts.supervisor.run();
  EXPECT_THAT(scripts.supervisor.failures(), ElementsAre(1));
  EXPECT_EQ(scripts.end_of(0), "was killed by SIGTERM");
  EXPECT_EQ(scripts.end_of(1), "exited with code 3");
  EXPECT_EQ(scripts.end_of(2), "was killed by SIGTERM");
}

TEST(Supervisor, DoesNotCountAnExpectedEndAsAFailure) {
  Scripts scripts;
  scripts.add("exit 3");
  scripts.supervisor.expect_end(std::chrono::seconds(10));
  scripts.supervisor.run();
  EXPECT_THAT(scripts.supervisor.failures(), IsEmpty());
  EXPECT_EQ(scripts.end_of(0), "exited with code 3");
}

TEST(Supervisor, TellsWhenARankHasEndedAndWasRead) {
  std::vector<std::string> seen;
  Scripts* all = nullptr;
  Scripts scripts({.on_end = [&](std::size_t rank) {
    seen.push_back(format("{} {}", rank, all->end_of(rank)));
  }});
  all = &scripts;
  scripts.add("exit 3");
  scripts.supervisor.run();
  scripts.add("echo words >&$1");
  scripts.supervisor.run();
  EXPECT_THAT(
      seen, ElementsAre("0 exited with code 3", "1 exited with code 0"));
  EXPECT_EQ(scripts.heard[1].text, "words\n");
}

/// A source whose gate is closed until somebody writes to it.
class Gated final : public EventSource {
 public:
  Gated(EventSource& source, int gate) : source_(source), gate_(gate) {}
  [[nodiscard]] int descriptor() const override { return source_.descriptor(); }
  void read() override { source_.read(); }
  [[nodiscard]] int gate() const override { return gate_; }
  void open() { gate_ = -1; }

 private:
  EventSource& source_;
  int gate_;
};

// The rank writes more than its pipe holds, and would otherwise never end.
TEST(Supervisor, ReadsASourceOnlyWhileItsGateIsOpenOrItsRankIsToEnd) {
  for (const bool is_told : {false, true}) {
    Pipe gate;
    Pipe pipe;
    ProcessStart start;
    start.program = "/bin/sh";
    start.arguments = {
        "sh",
        "-c",
        "head -c 200000 /dev/zero >&$1",
        "sh",
        std::to_string(pipe.write_end())};
    start.kept = pipe.write_end();
    start.variables = {"PATH=/usr/bin:/bin"};
    const StartedProcess started = start_process(std::move(start));
    pipe.close_write_end();
    Heard heard(pipe.release_read_end());
    Gated gated(heard, gate.read_end());
    int num_looks = 0;
    Supervisor* all = nullptr;
    std::size_t num_before = 0;
    Supervisor supervisor(
        {.interval = std::chrono::milliseconds(1), .on_interval = [&] {
           if (++num_looks != 20) return;
           num_before = heard.text.size();
           if (is_told) {
             all->expect_end(std::chrono::hours(1));
           } else {
             gated.open();
             ASSERT_EQ(::write(gate.write_end(), "x", 1), 1);
           }
         }});
    all = &supervisor;
    supervisor.add(started.pid, {&gated});
    supervisor.run();
    EXPECT_EQ(num_before, 0U);
    EXPECT_EQ(heard.text.size(), 200000U);
  }
}

TEST(Supervisor, KnowsWhichRanksItEndedAndHow) {
  Scripts scripts;
  scripts.add("exec sleep 1000");
  scripts.add("exit 3");
  scripts.supervisor.run();
  EXPECT_EQ(scripts.supervisor.ranks()[0].ended_with, SIGTERM);
  EXPECT_EQ(scripts.supervisor.ranks()[1].ended_with, 0);
  Scripts late;
  late.add("trap '' TERM; echo up >&$1; while :; do sleep 0.01; done");
  while (late.heard[0].text.empty()) late.heard[0].read();
  late.supervisor.expect_end(std::chrono::milliseconds(0));
  late.supervisor.run();
  EXPECT_EQ(late.supervisor.ranks()[0].ended_with, SIGKILL);
}

// No other event could wake up the supervisor.
TEST(Supervisor, CallsAtIntervals) {
  int count = 0;
  Scripts* all = nullptr;
  Scripts scripts(
      {.interval = std::chrono::milliseconds(1), .on_interval = [&] {
         if (++count == 3) all->supervisor.terminate();
       }});
  all = &scripts;
  scripts.add("exec sleep 1000");
  scripts.supervisor.run();
  EXPECT_GE(count, 3);
}

// As when another machine decides whether a rank is replaced.
TEST(Supervisor, GoesOnWithoutRanksWhileMoreMayBeAdded) {
  Scripts* all = nullptr;
  int num_calls = 0;
  Scripts ranks(
      {.awaits_more = [&] { return num_calls < 3; },
       .interval = std::chrono::milliseconds(1),
       .on_interval =
           [&] {
             ++num_calls;
             if (num_calls == 3) all->add("echo late >&$1; exit 4");
           }});
  all = &ranks;
  ranks.add("exit 0");
  ranks.supervisor.run();
  ASSERT_EQ(ranks.supervisor.ranks().size(), 2U);
  EXPECT_EQ(ranks.end_of(1), "exited with code 4");
  EXPECT_EQ(ranks.heard[1].text, "late\n");
  EXPECT_THAT(ranks.supervisor.failures(), ElementsAre(1U));
}

TEST(Supervisor, KillsAllAndWaits) {
  Scripts scripts;
  scripts.add("trap '' TERM; exec sleep 1000");
  scripts.add("exec sleep 1000");
  scripts.supervisor.kill_and_wait();
  EXPECT_TRUE(WIFSIGNALED(scripts.supervisor.ranks()[0].wait_status));
  EXPECT_FALSE(scripts.supervisor.ranks()[1].is_running);
}

TEST(StartProcess, ReportsWhyAProgramCannotStart) {
  ProcessStart start;
  start.program = "/no/such/program";
  start.arguments = {"program"};
  const StartedProcess started = start_process(std::move(start));
  EXPECT_EQ(started.problem, ENOENT);
  EXPECT_EQ(started.pid, -1);
}

TEST(StartProcess, CanReportLaterWhyAProgramCannotStart) {
  const std::pair<const char*, int> cases[] = {
      {"/no/such/program", ENOENT}, {"/bin/true", 0}};
  for (const auto& [program, problem] : cases) {
    ProcessStart start;
    start.program = program;
    start.arguments = {"program"};
    const BegunProcess begun = begin_process(std::move(start));
    ASSERT_EQ(begun.problem, 0);
    int told = 0;
    const auto count = ::read(begun.report.read_end(), &told, sizeof told);
    EXPECT_EQ(count, problem == 0 ? 0 : static_cast<ssize_t>(sizeof told));
    EXPECT_EQ(told, problem);
    int status = 0;
    ASSERT_EQ(::waitpid(begun.pid, &status, 0), begun.pid);
    EXPECT_EQ(status, problem == 0 ? 0 : kNotStarted << 8);
  }
}

TEST(StartProcess, GivesItsOwnVariablesAndStreams) {
  Pipe out, err;
  ProcessStart start;
  start.program = "/bin/sh";
  start.arguments = {"sh", "-c", "echo \"$WORD\"; echo no >&2; cat"};
  start.variables = {"WORD=yes", "PATH=/usr/bin:/bin"};
  start.out = out.write_end();
  start.err = err.write_end();
  const StartedProcess started = start_process(std::move(start));
  ASSERT_EQ(started.problem, 0);
  out.close_write_end();
  err.close_write_end();
  EXPECT_EQ(::getpgid(started.pid), started.pid);
  Heard said(out.release_read_end()), warned(err.release_read_end());
  Supervisor supervisor({});
  supervisor.add(started.pid, {&said, &warned});
  supervisor.run();
  EXPECT_EQ(said.text, "yes\n");
  EXPECT_EQ(warned.text, "no\n");
}

TEST(FindCause, PrefersASureCauseThenARankThatIsNotAVictim) {
  const Suspect victim{.rank = 4, .is_victim = true};
  const Suspect innocent{.rank = 2};
  const Suspect sure{.rank = 7, .is_surely_the_cause = true, .is_victim = true};
  const auto cause = [](std::vector<Suspect> suspects) {
    return find_cause(suspects);
  };
  EXPECT_EQ(cause({}), std::nullopt);
  EXPECT_EQ(cause({victim, {.rank = 1, .is_victim = true}}), 4U);
  EXPECT_EQ(cause({victim, innocent, {.rank = 0}}), 2U);
  EXPECT_EQ(cause({victim, innocent, sure}), 7U);
}

}  // namespace supervisor_test
}  // namespace accelerate::detail
