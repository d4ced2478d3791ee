// Launchers whose output nobody reads, and whose logs a disk does not take.
// Without timed assertions: a launcher that waits for a reader runs into the
// test's time limit. tests/faults/stuck_readers.py measures times.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace stuck_reader_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;
using testing::Tool;
using testing::ToolResult;

// A full pipe of 64 KiB has at least half of that: a write that does not fit
// into what is left of a page begins the next one.
constexpr int kNearlyFull = 32'000;
constexpr const char* kEndless = "yes rank $RANK &";
// More than a pipe holds, and less than the launcher keeps.
constexpr const char* kMuch = "yes rank $RANK | head -n 30000; sleep 1000 &";

/// Two ranks that write more than anybody reads. On SIGTERM a rank makes the
/// file told_RANK, prints a last line and ends.
class FloodingLaunch {
 public:
  explicit FloodingLaunch(
      const std::vector<std::string>& flags = {},
      const std::string& flood = kEndless)
      : tool_(words(flags, flood)) {}

  // Waits until both ranks handle SIGTERM, and nothing more fits into the pipe
  // that nobody reads.
  void wait_until_stuck() const {
    wait_for("pid_0");
    wait_for("pid_1");
    while (tool_.num_unread() < kNearlyFull) std::this_thread::yield();
  }
  void wait_for(const std::string& name) const {
    while (!std::filesystem::exists(path(name))) std::this_thread::yield();
  }
  // Kills a rank with all that it has started.
  void kill_rank(const std::string& rank) const {
    wait_for("pid_" + rank);
    pid_t process = 0;
    std::ifstream(path("pid_" + rank)) >> process;
    ::kill(-process, SIGKILL);
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return directory_ / name;
  }
  Tool& tool() { return tool_; }

 private:
  std::vector<std::string> words(
      const std::vector<std::string>& flags,
      const std::string& flood) {
    std::vector<std::string> all{"launch", "--num_processes", "2"};
    all.insert(all.end(), flags.begin(), flags.end());
    const std::string script =
        "trap 'kill $!; touch told_$RANK; echo bye; exit 0' TERM; cd $0; "
        "touch attempt_$TORCHELASTIC_RESTART_COUNT; " +
        flood + " echo $$ >pid.$RANK; mv pid.$RANK pid_$RANK; wait";
    all.insert(all.end(), {"bash", "-c", script, directory_.path().string()});
    return all;
  }

  TemporaryDirectory directory_;
  Tool tool_;
};

TEST(StuckReader, DoesNotKeepASignalFromTheRanksNorTheLauncherFromEnding) {
  FloodingLaunch launch;
  launch.wait_until_stuck();
  ::kill(launch.tool().pid(), SIGTERM);
  launch.wait_for("told_0");
  launch.wait_for("told_1");
  EXPECT_EQ(launch.tool().wait_unread(), 128 + SIGTERM);
  const ToolResult result = launch.tool().wait();
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("bytes of output are lost, since the reader of standard "
                    "output did not take them in time"),
          Not(HasSubstr("killed"))));
}

TEST(StuckReader, DoesNotHideADeath) {
  FloodingLaunch launch({}, kMuch);
  launch.wait_until_stuck();
  launch.wait_for("pid_0");
  launch.kill_rank("1");
  launch.wait_for("told_0");
  // A reader that comes back gets everything, the reason last.
  const ToolResult result = launch.tool().wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(result.out, HasSubstr("[0] bye\n"));
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("rank 1 (process"),
          ::testing::EndsWith("the others were ended\n"),
          Not(HasSubstr("lost"))));
}

TEST(StuckReader, DoesNotKeepAGroupFromStartingAgain) {
  FloodingLaunch launch({"--max_restarts", "1"});
  launch.wait_until_stuck();
  launch.kill_rank("1");
  launch.wait_for("attempt_1");
  ::kill(launch.tool().pid(), SIGTERM);
  EXPECT_EQ(launch.tool().wait_unread(), 128 + SIGTERM);
}

// Writing to a pipe that is full takes as long as writing to a file of a disk
// that does not answer.
TEST(StuckReader, MayBeTheDiskOfTheLogs) {
  const TemporaryDirectory logs;
  const std::string log = logs / "attempt_0/0/stdout.log";
  std::filesystem::create_directories(logs / "attempt_0/0");
  ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
  const int reader = ::open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  FloodingLaunch launch(
      {"--log_dir", logs.path().string(), "--tee", "0", "--max_restarts", "1"});
  launch.wait_for("pid_1");
  for (int count = 0; count < kNearlyFull; std::this_thread::yield())
    ::ioctl(reader, FIONREAD, &count);
  ::kill(launch.tool().pid(), SIGTERM);
  launch.wait_for("told_0");
  launch.wait_for("told_1");
  EXPECT_EQ(launch.tool().wait_unread(), 128 + SIGTERM);
  EXPECT_THAT(
      launch.tool().wait().err,
      HasSubstr("bytes of output are lost, since the disk of --log_dir did not "
                "take them in time"));
  ::close(reader);
}

}  // namespace stuck_reader_test
}  // namespace accelerate
