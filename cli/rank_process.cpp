#include "cli/rank_process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/exec_words.h"
#include "base/text.h"

namespace accelerate::cli {

namespace {

using detail::concat;

class Pipe {
 public:
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw ConfigError(
          concat("[launch] cannot make a pipe: ", std::strerror(errno)));
    }
    read_end_ = ends[0];
    write_end_ = ends[1];
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_write_end();
    if (read_end_ >= 0) close(read_end_);
  }

  [[nodiscard]] int read_end() const { return read_end_; }
  [[nodiscard]] int write_end() const { return write_end_; }
  int release_read_end() { return std::exchange(read_end_, -1); }
  void close_write_end() {
    if (write_end_ >= 0) close(std::exchange(write_end_, -1));
  }

 private:
  int read_end_ = -1;
  int write_end_ = -1;
};

struct Child {
  const char* program;
  const std::vector<char*>& arguments;
  const std::vector<char*>& variables;
  const cpu_set_t* processors;  // null: as the launcher's
  pid_t launcher;
  int out, err, report;  // out and err are -1 for the launcher's own
};

// After fork: only calls that are safe there.
[[noreturn]] void become_rank(const Child& child) {
  if (child.out >= 0) {
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(child.out, STDOUT_FILENO);
    dup2(child.err, STDERR_FILENO);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != child.launcher) _exit(1);  // it died in between
  if (child.processors != nullptr) {
    sched_setaffinity(0, sizeof *child.processors, child.processors);
  }
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(child.program, child.arguments.data(), child.variables.data());
  const int problem = errno;
  (void)!write(child.report, &problem, sizeof problem);
  _exit(127);
}

// "[worker 3] ", in a colour of its own on a terminal.
std::string prefix_of(const LaunchPlan& plan, int rank, int target) {
  std::string name = std::to_string(rank);
  if (plan.role != "default") name = concat(plan.role, " ", rank);
  if (!isatty(target) || plan.environment.has("NO_COLOR")) {
    return concat("[", name, "] ");
  }
  constexpr int kColours = 6, kFirstColour = 31;
  return concat(
      "\033[", kFirstColour + rank % kColours, "m[", name, "]\033[0m ");
}

std::string
log_of(const LaunchPlan& plan, int rank, int attempt, const char* name) {
  if (!plan.log_dir) return {};
  return concat(*plan.log_dir, "/attempt_", attempt, "/", rank, "/", name);
}

std::optional<cpu_set_t> processors_of(const LaunchPlan& plan, int local_rank) {
  if (plan.processors.empty()) return std::nullopt;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int each : plan.processors[static_cast<std::size_t>(local_rank)]) {
    if (each < CPU_SETSIZE) CPU_SET(each, &set);
  }
  return set;
}

}  // namespace

void RankProcess::pump(RankStream& stream) {
  const std::string_view piece = stream.pump();
  if (&stream != &err) return;
  last_words.hear(piece);
  if (!stream.is_open()) last_words.finish();
}

RankProcess start_rank(
    const LaunchPlan& plan,
    int local_rank,
    const StartOptions& options) {
  std::vector<std::string> arguments = plan.arguments;
  std::vector<std::string> variables =
      rank_variables(plan, local_rank, options.attempt, options.port);
  for (const auto& [name, value] : plan.environment.all()) {
    variables.push_back(concat(name, "=", value));
  }
  const std::vector<char*> argument_pointers = detail::exec_words(arguments);
  const std::vector<char*> variable_pointers = detail::exec_words(variables);
  std::optional<Pipe> out, err;
  if (options.is_isolated) {
    out.emplace();
    err.emplace();
  }
  Pipe report;
  const auto processors = processors_of(plan, local_rank);

  RankProcess process;
  process.rank = plan.rank_of(local_rank);
  if (options.is_isolated) {
    const Shown shown = plan.shown[static_cast<std::size_t>(local_rank)];
    const bool shows_all = !plan.log_dir;
    process.out = RankStream(
        out->release_read_end(),
        shown.out || shows_all ? STDOUT_FILENO : -1,
        prefix_of(plan, process.rank, STDOUT_FILENO),
        log_of(plan, process.rank, options.attempt, "stdout.log"));
    process.err = RankStream(
        err->release_read_end(),
        shown.err || shows_all ? STDERR_FILENO : -1,
        prefix_of(plan, process.rank, STDERR_FILENO),
        log_of(plan, process.rank, options.attempt, "stderr.log"));
  }
  const Child child{
      plan.program.c_str(),
      argument_pointers,
      variable_pointers,
      processors ? &*processors : nullptr,
      getpid(),
      out ? out->write_end() : -1,
      err ? err->write_end() : -1,
      report.write_end()};
  process.pid = fork();
  if (process.pid == 0) become_rank(child);
  const int fork_problem = errno;
  out.reset();
  err.reset();
  report.close_write_end();
  int problem = 0;
  const bool failed = process.pid < 0 ||
      read(report.read_end(), &problem, sizeof problem) ==
          static_cast<ssize_t>(sizeof problem);
  if (failed) {
    if (process.pid > 0) waitpid(process.pid, nullptr, 0);
    throw ConfigError(concat(
        "[launch] cannot start \"",
        plan.program,
        "\": ",
        std::strerror(process.pid < 0 ? fork_problem : problem)));
  }
  // Both sides, so that neither is late.
  if (options.is_isolated) setpgid(process.pid, process.pid);
  return process;
}

}  // namespace accelerate::cli
