#include "launch/processes/watchdog.h"

#include <cerrno>
#include <csignal>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accelerate::detail {

namespace {

constexpr pid_t kDismiss = 0;

[[noreturn]] void keep_watch(int pipe) {
  // Leaves the session, so that terminal signals do not reach it.
  setsid();
  std::vector<pid_t> groups;
  pid_t message = 0;
  for (;;) {
    const ssize_t count = read(pipe, &message, sizeof message);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof message) break;
    if (message == kDismiss) _exit(0);
    if (message > 0) {
      groups.push_back(message);
    } else {
      std::erase(groups, -message);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Watchdog::Watchdog() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  process_ = fork();
  if (process_ == 0) {
    close(ends[1]);
    // Closes the streams, so that readers of the launcher's output do not wait
    // for the watchdog.
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      dup2(nothing, stream);
    keep_watch(ends[0]);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

Watchdog::~Watchdog() {
  if (pipe_ < 0) return;
  send(kDismiss);
  close(pipe_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

void Watchdog::watch(pid_t process_group) { send(process_group); }

void Watchdog::forget(pid_t process_group) { send(-process_group); }

void Watchdog::send(pid_t message) const {
  if (pipe_ < 0) return;
  while (write(pipe_, &message, sizeof message) < 0 && errno == EINTR) {
  }
}

}  // namespace accelerate::detail
