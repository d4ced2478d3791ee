#include "cli/launch/output/launch_output.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "cli/launch/nodes/join_launch.h"
#include "support/temporary_directory.h"

namespace accelerate::cli {
namespace launch_output_test {

using testing::TemporaryDirectory;

constexpr std::chrono::seconds kLong{60};

/// A pipe whose reader is the test.
class ReadPipe {
 public:
  ReadPipe() {
    // As in the launcher; a queue may still be writing at the end of a test.
    std::signal(SIGPIPE, SIG_IGN);
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  }
  ReadPipe(const ReadPipe&) = delete;
  ReadPipe& operator=(const ReadPipe&) = delete;
  ~ReadPipe() {
    for (const int end : ends_) ::close(end);
  }
  [[nodiscard]] int write_end() const { return ends_[1]; }
  // For the end of a test whose queue may still be writing: the next file that
  // is opened must not get the number to which it writes.
  void leave_open() { ends_ = {-1, -1}; }
  // Reads exactly `count` bytes.
  [[nodiscard]] std::string read(std::size_t count) const {
    std::string text(count, '\0');
    for (std::size_t have = 0; have < count;) {
      const ssize_t some = ::read(ends_[0], text.data() + have, count - have);
      if (some <= 0) throw std::runtime_error("read");
      have += static_cast<std::size_t>(some);
    }
    return text;
  }

 private:
  std::array<int, 2> ends_{};
};

bool is_readable(int descriptor, int milliseconds) {
  pollfd wait{descriptor, POLLIN, 0};
  return ::poll(&wait, 1, milliseconds) == 1;
}

void wait_until_idle(const OutputQueue& queue) {
  while (!queue.is_idle()) std::this_thread::yield();
}

// Whatever is written in whatever pieces arrives in order, and nobody waits for
// the reader.
RC_GTEST_PROP(
    OutputQueue,
    KeepsTheOrderOfWhatIsAdded,
    (const std::vector<std::string>& texts)) {
  const ReadPipe pipe;
  OutputQueue queue;
  const auto file = std::make_shared<OutputFile>(pipe.write_end());
  std::string all;
  for (const std::string& text : texts) {
    queue.add(file, text);
    all += text;
  }
  RC_ASSERT(pipe.read(all.size()) == all);
  wait_until_idle(queue);
  RC_ASSERT(queue.num_unwritten() == 0U);
  RC_ASSERT(queue.num_dropped() == 0U);
}

TEST(OutputQueue, ClosesItsGateUntilTheReaderHasCaughtUp) {
  const ReadPipe pipe;
  OutputQueue queue;
  const auto file = std::make_shared<OutputFile>(pipe.write_end());
  constexpr std::size_t kPiece = 1U << 16U;
  EXPECT_EQ(queue.gate(), -1);
  std::size_t count = 0;
  while (queue.gate() < 0) {
    queue.add(file, std::string(kPiece, 'x'));
    count += kPiece;
  }
  EXPECT_GE(count, OutputQueue::kEnough);
  const int gate = queue.gate();
  EXPECT_FALSE(is_readable(gate, 0));
  EXPECT_EQ(pipe.read(count), std::string(count, 'x'));
  EXPECT_TRUE(is_readable(gate, 60'000));
  EXPECT_EQ(queue.gate(), -1);
  // The second time as the first.
  for (count = 0; queue.gate() < 0; count += kPiece)
    queue.add(file, std::string(kPiece, 'y'));
  EXPECT_FALSE(is_readable(queue.gate(), 0));
  // Nothing writes to the pipe when it is closed.
  EXPECT_EQ(pipe.read(count), std::string(count, 'y'));
  wait_until_idle(queue);
}

TEST(OutputQueue, DropsWhatWouldTakeTooMuchMemoryAndCountsIt) {
  ReadPipe pipe;
  OutputQueue queue;
  const auto file = std::make_shared<OutputFile>(pipe.write_end());
  queue.add(file, std::string(OutputQueue::kMost - 1, 'x'));
  EXPECT_EQ(queue.num_dropped(), 0U);
  queue.add(file, "abc");
  EXPECT_EQ(queue.num_dropped(), 3U);
  queue.add(file, "y");
  EXPECT_EQ(queue.num_dropped(), 3U);
  EXPECT_EQ(queue.num_unwritten(), OutputQueue::kMost);
  pipe.leave_open();
}

TEST(OutputQueue, CanEndWhileAWriteDoesNotReturn) {
  ReadPipe pipe;
  {
    OutputQueue queue;
    queue.add(
        std::make_shared<OutputFile>(pipe.write_end()),
        std::string(OutputQueue::kEnough, 'x'));
    EXPECT_FALSE(queue.is_idle());
    // The write has begun, and waits for a reader.
    while (pipe.read(1).empty()) std::this_thread::yield();
  }
  // The queue is gone, although nobody has read what it wrote.
  pipe.leave_open();
}

/// A launcher's output whose thread for logs waits for a disk: for a pipe that
/// nobody reads yet.
class StuckLogs {
 public:
  explicit StuckLogs(std::chrono::milliseconds patience) {
    EXPECT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
    pipe_ = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    output.emplace(signals, patience);
    output->open_log(path("pipe"), true)
        .write(std::string(OutputQueue::kEnough, 'x'));
  }
  StuckLogs(const StuckLogs&) = delete;
  StuckLogs& operator=(const StuckLogs&) = delete;
  ~StuckLogs() {
    read_all();
    output.reset();
    ::close(pipe_);
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return directory_ / name;
  }
  void read_all() {
    std::array<char, 4096> block{};
    while (num_read_ < OutputQueue::kEnough) {
      is_readable(pipe_, 60'000);
      num_read_ += static_cast<std::size_t>(
          std::max<ssize_t>(::read(pipe_, block.data(), block.size()), 0));
    }
  }

  Signals signals;
  std::optional<LaunchOutput> output;

 private:
  TemporaryDirectory directory_;
  int pipe_ = -1;
  std::size_t num_read_ = 0;
};

TEST(LaunchOutput, EndsWhenToldToWhileALogDoesNotOpen) {
  StuckLogs logs(LaunchOutput::kPatience);
  ::raise(SIGTERM);
  try {
    static_cast<void>(logs.output->open_log(logs.path("log"), true));
    ADD_FAILURE() << "the log was opened";
  } catch (const Stopped& stopped) {
    EXPECT_EQ(stopped.signal, SIGTERM);
  }
}

// The one who waits for it throws, or, if nobody does, a warning says so.
TEST(LaunchOutput, SaysOnceThatALogCannotBeOpened) {
  const TemporaryDirectory directory;
  const std::string path = directory.path().string();
  for (const bool must_open : {false, true}) {
    ::testing::internal::CaptureStderr();
    int num_thrown = 0;
    {
      const Signals signals;
      LaunchOutput output(signals);
      try {
        static_cast<void>(output.open_log(path, must_open));
      } catch (const ConfigError& error) {
        ++num_thrown;
        EXPECT_THAT(error.what(), ::testing::HasSubstr("Is a directory"));
      }
    }
    EXPECT_EQ(num_thrown, must_open ? 1 : 0);
    EXPECT_EQ(
        ::testing::internal::GetCapturedStderr(),
        must_open ? ""
                  : "accelerate-cpp: warning: cannot write " + path +
                ": Is a directory; further output is not logged\n");
  }
}

TEST(LaunchOutput, GoesOnWithoutALogThatDoesNotOpen) {
  ::testing::internal::CaptureStderr();
  std::string path;
  {
    StuckLogs logs(std::chrono::milliseconds(0));
    path = logs.path("a/log");
    const OutputTarget log = logs.output->open_log(path, true);
    log.write("kept");
    // No log is waited for any more.
    static_cast<void>(logs.output->open_log(logs.path("other"), true));
    logs.read_all();
    logs.output.reset();
    EXPECT_EQ(detail::read_file(path), "kept");
  }
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "accelerate-cpp: warning: " + path +
          " of --log_dir does not open: its disk does not answer; the ranks "
          "start, and what they print is logged once it does\n");
}

TEST(WhileConnecting, SaysOnceWhyAndHeedsSignals) {
  ::testing::internal::CaptureStderr();
  {
    const Signals signals;
    const LaunchOutput output(signals);
    const auto wait = while_connecting(
        signals, output, "10.9.8.7:5599", std::chrono::milliseconds(0));
    wait("Network is unreachable");
    wait("Connection refused");
    ::raise(SIGTERM);
    EXPECT_THROW(wait("Connection refused"), Stopped);
  }
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "accelerate-cpp: waiting for the launcher of machine 0: cannot connect "
      "to 10.9.8.7:5599 (Network is unreachable)\n");
}

TEST(LaunchOutputFile, IsMadeAnewWithItsDirectories) {
  const TemporaryDirectory directory;
  const std::string path = directory / "a/b/log";
  std::filesystem::create_directories(directory / "a/b");
  std::ofstream(path) << "old";
  OutputQueue queue;
  auto file = std::make_shared<OutputFile>(path, [](int) { FAIL(); });
  queue.add(file, "new");
  EXPECT_EQ(file->wait_until_open(kLong), 0);
  queue.add(std::move(file), "er");
  wait_until_idle(queue);
  EXPECT_EQ(detail::read_file(path), "newer");
}

TEST(LaunchOutputFile, ReportsOnceThatItCannotBeWritten) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "nobody_reads").c_str(), 0600), 0);
  const std::pair<std::string, int> cases[] = {
      {directory / "nobody_reads", ENXIO},
      {directory.path().string(), EISDIR},
      {"/proc/logs/log", ENOENT}};
  for (const auto& [path, problem] : cases) {
    OutputQueue queue;
    std::vector<int> reported;
    auto file = std::make_shared<OutputFile>(
        path, [&](int number) { reported.push_back(number); });
    queue.add(file, "text");
    EXPECT_EQ(file->wait_until_open(kLong), problem) << path;
    queue.add(std::move(file), "more");
    wait_until_idle(queue);
    EXPECT_THAT(reported, ::testing::ElementsAre(problem)) << path;
  }
}

}  // namespace launch_output_test
}  // namespace accelerate::cli
