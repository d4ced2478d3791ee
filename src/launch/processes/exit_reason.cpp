#include "launch/processes/exit_reason.h"

#include <csignal>
#include <cstring>

#include <sys/wait.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

const char* hint_of(int signal) {
  switch (signal) {
    case SIGKILL:
      return " (out of memory? see the kernel log: dmesg)";
    case SIGSEGV:
      return " (it read or wrote memory that is not its own)";
    case SIGBUS:
      return " (shared memory full, or a mapped file cut short?)";
    case SIGILL:
      return " (built for another processor?)";
    case SIGABRT:
      return " (an uncaught exception, or a failed check)";
    case SIGXFSZ:
      return " (it wrote a larger file than \"ulimit -f\" allows)";
    case SIGXCPU:
      return " (it took more processor time than \"ulimit -t\" allows)";
    default:
      return "";
  }
}

}  // namespace

std::string describe_exit(int wait_status) {
  if (WIFEXITED(wait_status)) {
    return format("exited with code {}", WEXITSTATUS(wait_status));
  }
  const int signal = WTERMSIG(wait_status);
  const char* name = sigabbrev_np(signal);
  return format(
      "was killed by {}{}",
      name != nullptr ? format("SIG{}", name) : std::to_string(signal),
      hint_of(signal));
}

std::string describe_end(const RankEnd& end) {
  // A shell that waits for the program reports its end as its own exit code.
  if (end.was_killed_for_hang && exit_code_of(end.wait_status) == 128 + SIGKILL)
    return kEndedForHang;
  const int signal =
      WIFSIGNALED(end.wait_status) ? WTERMSIG(end.wait_status) : 0;
  if (signal != 0 && signal == end.ended_with) {
    return signal == SIGKILL
        ? "was ended because it still ran when its time to end was over"
        : "was ended with the others";
  }
  return describe_exit(end.wait_status);
}

int exit_code_of(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status)
                                : 128 + WTERMSIG(wait_status);
}

}  // namespace accelerate::detail
