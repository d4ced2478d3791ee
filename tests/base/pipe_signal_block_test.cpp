#include "base/process/pipe_signal_block.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

namespace accelerate::detail {
namespace pipe_signal_block_test {

bool is_blocked() {
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, SIGPIPE) == 1;
}

int write_to_nobody() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  errno = 0;
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  const int error = errno;
  ::close(ends[1]);
  return error;
}

TEST(PipeSignalBlock, LetsWritesFail) {
  ASSERT_FALSE(is_blocked());
  for (int i = 0; i < 2; ++i) {
    const PipeSignalBlock block;
    EXPECT_EQ(write_to_nobody(), EPIPE);
  }
  EXPECT_FALSE(is_blocked());
}

TEST(PipeSignalBlock, ThreadsKeepIt) {
  std::thread thread;
  {
    const PipeSignalBlock block;
    thread = std::thread([] {
      const PipeSignalBlock nested;
      EXPECT_EQ(write_to_nobody(), EPIPE);
    });
  }
  thread.join();
  EXPECT_FALSE(is_blocked());
}

TEST(PipeSignalBlock, LeavesAMaskAsItWas) {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  { const PipeSignalBlock block; }
  EXPECT_TRUE(is_blocked());
  ::pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

TEST(PipeSignalBlock, KeepsErrno) {
  errno = ENOENT;
  { const PipeSignalBlock block; }
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace pipe_signal_block_test
}  // namespace accelerate::detail
