#include "launch/processes/exit_reason.h"

#include <csignal>

#include <gtest/gtest.h>

namespace accelerate::detail {
namespace exit_reason_test {

constexpr int exited_with(int code) { return code << 8; }

TEST(DescribeExit, SaysWhatASignalUsuallyMeans) {
  const std::pair<int, const char*> cases[] = {
      {exited_with(0), "exited with code 0"},
      {exited_with(3), "exited with code 3"},
      {SIGTERM, "was killed by SIGTERM"},
      {SIGKILL,
       "was killed by SIGKILL (out of memory? see the kernel log: dmesg)"},
      {SIGSEGV,
       "was killed by SIGSEGV (it read or wrote memory that is not its own)"},
      {SIGABRT,
       "was killed by SIGABRT (an uncaught exception, or a failed check)"},
      {SIGXFSZ,
       "was killed by SIGXFSZ (it wrote a larger file than \"ulimit -f\" "
       "allows)"},
      {SIGXCPU,
       "was killed by SIGXCPU (it took more processor time than \"ulimit -t\" "
       "allows)"}};
  for (const auto& [status, words] : cases)
    EXPECT_EQ(describe_exit(status), words);
}

TEST(DescribeEnd, NamesWhoEndedTheRank) {
  const std::pair<RankEnd, const char*> cases[] = {
      {{SIGKILL, 0, true}, kEndedForHang},
      {{SIGKILL, SIGKILL, true}, kEndedForHang},
      // A shell reports the end of its program.
      {{exited_with(128 + SIGKILL), 0, true}, kEndedForHang},
      // It ended before it could be killed.
      {{exited_with(3), 0, true}, "exited with code 3"},
      {{SIGKILL, SIGKILL, false},
       "was ended because it still ran when its time to end was over"},
      {{SIGTERM, SIGTERM, false}, "was ended with the others"},
      {{SIGTERM, 0, false}, "was killed by SIGTERM"},
      {{SIGKILL, SIGTERM, false},
       "was killed by SIGKILL (out of memory? see the kernel log: dmesg)"}};
  for (const auto& [end, words] : cases) EXPECT_EQ(describe_end(end), words);
}

}  // namespace exit_reason_test
}  // namespace accelerate::detail
