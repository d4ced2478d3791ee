#include "launch/stacks/thread_stacks.h"

#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/processes/start_process.h"

namespace accelerate::detail {
namespace thread_stacks_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(ThreadStacks, ReadsWhatEuStackPrints) {
  const auto threads = parse_stacks(
      "PID 12 - process\n"
      "TID 12:\n"
      "#0  0x00007f0123456789 __pthread_kill\n"
      "#1  0x00007f0123456789 - 1 a::f(int, b<c>)\n"
      "#2  0x000055d012345678\n"
      "eu-stack: dwfl_thread_getframes tid 12: no error\n"
      "TID 13:\n"
      "#0  0x00007f0123456789 clone3\n"
      "TID 14:\n");
  EXPECT_THAT(
      threads,
      ElementsAre(
          ThreadStack{
              12, {"__pthread_kill", "a::f(int, b<c>)", "0x000055d012345678"}},
          ThreadStack{13, {"clone3"}}));
}

TEST(ThreadStacks, ReadsWhatGdbPrints) {
  const auto threads = parse_stacks(
      "[New LWP 22]\n"
      "\n"
      "Thread 2 (Thread 0x7f01 (LWP 22) \"pool\"):\n"
      "#0  0x00007f01 in read () from /lib/libc.so.6\n"
      "#1  main (argc=1) at train.cpp:12\n"
      "\n"
      "Thread 1 (LWP 21):\n"
      "#0  f () at a.cpp:1\n");
  EXPECT_THAT(
      threads,
      ElementsAre(
          ThreadStack{
              22,
              {"read () from /lib/libc.so.6", "main (argc=1) at train.cpp:12"}},
          ThreadStack{21, {"f () at a.cpp:1"}}));
}

TEST(ThreadStacks, TakesNothingFromOtherTexts) {
  for (const char* const text :
       {"",
        "#",
        "#0",
        "#0 0x12 f",
        "TID x:\n#0 0x1 f",
        "Thread\n#0 f",
        "TID 99999999999999999999:\n#0 f"})
    EXPECT_THAT(parse_stacks(text), IsEmpty()) << text;
}

TEST(ThreadStacks, FoldsEqualStacks) {
  const std::vector<NamedStacks> processes{
      {"rank 0", {10, {{10, {"f", "main"}}, {11, {"work"}}}, ""}},
      {"rank 1", {20, {{20, {"f", "main"}}, {21, {"work"}}}, ""}},
      {"rank 2", {30, {{30, {"g", "main"}}}, ""}},
      {"rank 3", {40, {}, "not allowed"}}};
  EXPECT_EQ(
      describe(processes),
      "rank 3: not allowed\n"
      "rank 0; rank 1:\n    f\n    main\n"
      "rank 0, thread 11; rank 1, thread 21:\n    work\n"
      "rank 2:\n    g\n    main\n");
}

TEST(StackTaker, SaysWhatIsMissing) {
  const ProcessStacks stacks = StackTaker("/nowhere").take(getpid());
  EXPECT_THAT(stacks.threads, IsEmpty());
  EXPECT_THAT(stacks.problem, HasSubstr("install elfutils"));
}

TEST(StackTaker, SaysWhyAProcessCannotBeTraced) {
  const StackTaker taker("/usr/bin");
  const ProcessStacks missing = taker.take(-1);
  EXPECT_THAT(missing.threads, IsEmpty());
  EXPECT_THAT(missing.problem, ::testing::Not(IsEmpty()));
}

TEST(StackTaker, TakesStacksOfAProcess) {
  ProcessStart start;
  start.program = "/bin/sleep";
  start.arguments = {"sleep", "1000"};
  const StartedProcess started = start_process(std::move(start));
  ASSERT_EQ(started.problem, 0);
  const ProcessStacks stacks = StackTaker("/usr/bin:/bin").take(started.pid);
  kill(started.pid, SIGKILL);
  waitpid(started.pid, nullptr, 0);
  if (stacks.problem.find("install elfutils") != std::string::npos)
    GTEST_SKIP() << stacks.problem;
  ASSERT_THAT(stacks.threads, SizeIs(1)) << stacks.problem;
  EXPECT_EQ(stacks.threads[0].thread, started.pid);
  EXPECT_THAT(stacks.threads[0].frames, ::testing::Not(IsEmpty()));
}

}  // namespace thread_stacks_test
}  // namespace accelerate::detail
