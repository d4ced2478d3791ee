#include "launch/processes/start_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/process/exec_pointers.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

struct Child {
  const ProcessStart& start;
  const std::vector<char*>& arguments;
  const std::vector<char*>& variables;
  pid_t parent;
  int report;
};

void redirect_streams(const ProcessStart& start) {
  setpgid(0, 0);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(start.out, STDOUT_FILENO);
  dup2(start.err, STDERR_FILENO);
}

void reset_signals() {
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Runs after fork: only async-signal-safe calls are allowed.
[[noreturn]] void become(const Child& child) {
  const ProcessStart& start = child.start;
  if (start.out >= 0) redirect_streams(start);
  if (start.kept >= 0) fcntl(start.kept, F_SETFD, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != child.parent) _exit(1);  // the parent died in between
  if (start.processors != nullptr) {
    sched_setaffinity(0, sizeof *start.processors, start.processors);
  }
  if (start.resets_signals) reset_signals();
  execve(start.program.c_str(), child.arguments.data(), child.variables.data());
  const int problem = errno;
  (void)!write(child.report, &problem, sizeof problem);
  _exit(kNotStarted);
}

}  // namespace

Pipe::Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw ConfigError(
        format("[launch] cannot make a pipe: {}", std::strerror(errno)));
  }
  read_end_ = ends[0];
  write_end_ = ends[1];
}

Pipe::Pipe(Pipe&& other) noexcept
    : read_end_(other.release_read_end()),
      write_end_(std::exchange(other.write_end_, -1)) {}

Pipe& Pipe::operator=(Pipe&& other) noexcept {
  std::swap(read_end_, other.read_end_);
  std::swap(write_end_, other.write_end_);
  return *this;
}

Pipe::~Pipe() {
  close_write_end();
  if (read_end_ >= 0) close(read_end_);
}

int Pipe::release_read_end() { return std::exchange(read_end_, -1); }

void Pipe::close_write_end() {
  if (write_end_ >= 0) close(std::exchange(write_end_, -1));
}

BegunProcess begin_process(ProcessStart start) {
  const std::vector<char*> arguments = exec_pointers(start.arguments);
  const std::vector<char*> variables = exec_pointers(start.variables);
  BegunProcess begun;
  const Child child{
      start, arguments, variables, getpid(), begun.report.write_end()};
  begun.pid = fork();
  if (begun.pid == 0) become(child);
  if (begun.pid < 0) {
    begun.problem = errno;
    return begun;
  }
  begun.report.close_write_end();
  // Both parent and child set the group, so that neither sees it unset.
  if (start.out >= 0) setpgid(begun.pid, begun.pid);
  return begun;
}

StartedProcess start_process(ProcessStart start) {
  const BegunProcess begun = begin_process(std::move(start));
  StartedProcess started{begun.pid, begun.problem};
  if (started.problem != 0) return started;
  int problem = 0;
  ssize_t count = 0;
  do {
    count = read(begun.report.read_end(), &problem, sizeof problem);
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(sizeof problem)) {
    started.problem = problem;
    waitpid(std::exchange(started.pid, -1), nullptr, 0);
  }
  return started;
}

}  // namespace accelerate::detail
