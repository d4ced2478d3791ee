#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_journal.h"
#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace terminal_test {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunJournal;

constexpr const char* kEnter = "\x1b[?1049h";
constexpr const char* kLeave = "\x1b[?1049l";

// Runs the tool on a terminal that the test controls.
class WatchedTerminal {
 public:
  WatchedTerminal(const std::string& path, unsigned short columns) {
    master_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    const std::string name = ptsname(master_);
    // Kept open so that its settings outlive the tool.
    slave_ = open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    resize(columns);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // The first terminal that a session leader opens becomes its controlling
    // terminal.
    posix_spawn_file_actions_addopen(&actions, 0, name.c_str(), O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&actions, 0, 1);
    posix_spawn_file_actions_adddup2(&actions, 0, 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    std::string words[] = {ACCELERATE_TOOL, "watch", path};
    char* arguments[] = {
        words[0].data(), words[1].data(), words[2].data(), nullptr};
    std::string variables[] = {"TERM=xterm-256color", "NO_COLOR=1"};
    char* environment[] = {variables[0].data(), variables[1].data(), nullptr};
    EXPECT_EQ(
        posix_spawn(
            &pid_,
            words[0].c_str(),
            &actions,
            &attributes,
            arguments,
            environment),
        0);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  WatchedTerminal(const WatchedTerminal&) = delete;
  WatchedTerminal& operator=(const WatchedTerminal&) = delete;
  ~WatchedTerminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(slave_);
    close(master_);
  }

  void resize(unsigned short columns) const {
    winsize size{};
    size.ws_row = 16;
    size.ws_col = columns;
    EXPECT_EQ(ioctl(master_, TIOCSWINSZ, &size), 0);
  }
  void type(const std::string& keys) const {
    EXPECT_EQ(
        write(master_, keys.data(), keys.size()),
        static_cast<ssize_t>(keys.size()));
  }
  // Returns what the tool writes up to `text`, which must appear.
  std::string read_to(const std::string& text) {
    std::size_t end = 0;
    while ((end = unread_.find(text)) == unread_.npos) {
      constexpr int kMostMilliseconds = 60000;
      pollfd wait{master_, POLLIN, 0};
      char block[4096];
      if (poll(&wait, 1, kMostMilliseconds) != 1) break;
      const ssize_t count = read(master_, block, sizeof block);
      if (count <= 0) break;
      unread_.append(block, static_cast<std::size_t>(count));
    }
    if (end == unread_.npos) {
      ADD_FAILURE() << "\"" << text << "\" is missing in: " << unread_;
      return std::exchange(unread_, "");
    }
    const std::string before = unread_.substr(0, end + text.size());
    unread_.erase(0, end + text.size());
    return before;
  }
  [[nodiscard]] bool is_raw() const {
    termios settings{};
    tcgetattr(slave_, &settings);
    return (settings.c_lflag & (ICANON | ECHO)) == 0;
  }
  void signal(int number) const { kill(pid_, number); }
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int master_ = -1;
  int slave_ = -1;
  pid_t pid_ = -1;
  std::string unread_;
};

class WatchInTerminal : public ::testing::Test {
 protected:
  WatchInTerminal() : journal_(directory_ / "a") {
    journal_.scalars(1, 0, {{"accuracy", 0.25}, {"loss", 4}})
        .scalars(2, 1, {{"accuracy", 0.5}, {"loss", 2}})
        .write();
  }
  [[nodiscard]] std::string path() const { return directory_.path(); }

  testing::TemporaryDirectory directory_;
  RunJournal journal_;
};

TEST_F(WatchInTerminal, FollowsTheJournalAndTheKeys) {
  WatchedTerminal terminal(path(), 60);
  terminal.read_to(kEnter);
  terminal.read_to("loss  (last entry");
  terminal.read_to("a  step 1  2");
  EXPECT_TRUE(terminal.is_raw());
  terminal.type("\x1b[C");
  terminal.read_to("accuracy  (last entry");
  journal_.scalars(3, 2, {{"accuracy", 0.75}}).write();
  terminal.read_to("a  step 2  0.75");
  terminal.type("\x1b[D");
  terminal.read_to("loss  (last entry");
  terminal.type("sl+");
  terminal.read_to("(smoothing 0.6, log axis, last 1/2 of the steps, last");
  terminal.type("q");
  terminal.read_to(kLeave);
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_FALSE(terminal.is_raw());
}

TEST_F(WatchInTerminal, FollowsTheSizeOfTheWindow) {
  WatchedTerminal terminal(path(), 60);
  terminal.read_to(std::string("0") + std::string(46, ' ') + "1");
  terminal.resize(40);
  terminal.signal(SIGWINCH);
  terminal.read_to(std::string("  0") + std::string(26, ' ') + "1\x1b[K");
  terminal.resize(10);
  terminal.signal(SIGWINCH);
  terminal.read_to("too small");
  terminal.type("\x03");
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(WatchInTerminal, LeavesTheTerminalAsItWasWhenASignalEndsIt) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT, SIGSEGV}) {
    WatchedTerminal terminal(path(), 60);
    terminal.read_to("q quit");
    terminal.signal(signal);
    terminal.read_to(kLeave);
    EXPECT_EQ(terminal.wait(), signal == SIGSEGV ? 128 + SIGSEGV : 0);
    EXPECT_FALSE(terminal.is_raw());
  }
}

TEST_F(WatchInTerminal, PrintsOneSnapshotWhereThereIsNone) {
  const auto result = testing::run_tool({"watch", path()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("loss  (last entry"));
  EXPECT_THAT(result.out, HasSubstr("a  step 1  2\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
}

}  // namespace terminal_test
}  // namespace accelerate
