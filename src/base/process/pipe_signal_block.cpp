#include "base/process/pipe_signal_block.h"

#include <cerrno>
#include <ctime>

namespace accelerate::detail {

namespace {

sigset_t pipe_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

PipeSignalBlock::PipeSignalBlock() {
  const sigset_t pipe = pipe_signal();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
  was_blocked_ = sigismember(&before, SIGPIPE) == 1;
}

PipeSignalBlock::~PipeSignalBlock() {
  if (was_blocked_) return;
  const sigset_t pipe = pipe_signal();
  const int error = errno;
  const timespec no_wait{};
  while (::sigtimedwait(&pipe, nullptr, &no_wait) == SIGPIPE ||
         errno == EINTR) {
  }
  errno = error;
  ::pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

}  // namespace accelerate::detail
