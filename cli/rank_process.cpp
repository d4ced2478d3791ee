#include "cli/rank_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::cli {

namespace {

constexpr std::size_t kRememberedLines = 12;

void write_all(int target, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(target, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // nobody reads any more
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw ConfigError(
        detail::concat("[launch] cannot make a pipe: ", std::strerror(errno)));
  }
  return {ends[0], ends[1]};
}

// After fork: only calls that are safe there.
[[noreturn]] void become_rank(
    const LaunchPlan& plan,
    const std::vector<char*>& arguments,
    const std::vector<char*>& variables,
    const StartOptions& options,
    pid_t launcher,
    const Pipe& out,
    const Pipe& err,
    const Pipe& report) {
  if (options.is_isolated) {
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out.write_end, STDOUT_FILENO);
    dup2(err.write_end, STDERR_FILENO);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // it died in between
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(plan.program.c_str(), arguments.data(), variables.data());
  const int problem = errno;
  (void)!write(report.write_end, &problem, sizeof problem);
  _exit(127);
}

}  // namespace

void RankProcess::remember(std::string_view piece) {
  for (const char c : piece) {
    if (c != '\n') {
      unfinished_word += c;
      continue;
    }
    if (unfinished_word.find("[comm]") != std::string::npos ||
        unfinished_word.find("DistributedError") != std::string::npos) {
      blames_others = true;
    }
    last_words.push_back(std::move(unfinished_word));
    unfinished_word.clear();
    if (last_words.size() > kRememberedLines) last_words.pop_front();
  }
}

void RankProcess::pump(RankStream& stream) {
  std::array<char, 1 << 16> block;
  const ssize_t count = read(stream.pipe, block.data(), block.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count > 0) {
    const std::string_view piece(block.data(), static_cast<std::size_t>(count));
    if (&stream == &err) remember(piece);
    write_all(stream.target, stream.prefixer.feed(piece));
    return;
  }
  write_all(stream.target, stream.prefixer.finish());
  if (&stream == &err && !unfinished_word.empty()) remember("\n");
  close(stream.pipe);
  stream.pipe = -1;
}

RankProcess
start_rank(const LaunchPlan& plan, int rank, const StartOptions& options) {
  std::vector<std::string> arguments = plan.arguments;
  std::vector<std::string> variables;
  for (const auto& [name, value] :
       plan.environments[static_cast<std::size_t>(rank)].all()) {
    variables.push_back(detail::concat(name, "=", value));
  }
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> variable_pointers = pointers_to(variables);
  Pipe out, err;
  if (options.is_isolated) {
    out = make_pipe();
    err = make_pipe();
  }
  const Pipe report = make_pipe();
  const pid_t launcher = getpid();

  RankProcess process;
  process.rank = rank;
  process.pid = fork();
  if (process.pid == 0) {
    become_rank(
        plan,
        argument_pointers,
        variable_pointers,
        options,
        launcher,
        out,
        err,
        report);
  }
  const int fork_problem = errno;
  for (const int end : {out.write_end, err.write_end, report.write_end}) {
    if (end >= 0) close(end);
  }
  int problem = 0;
  const bool failed = process.pid < 0 ||
      read(report.read_end, &problem, sizeof problem) ==
          static_cast<ssize_t>(sizeof problem);
  close(report.read_end);
  if (failed) {
    if (process.pid > 0) waitpid(process.pid, nullptr, 0);
    throw ConfigError(detail::concat(
        "[launch] cannot start \"",
        plan.program,
        "\": ",
        std::strerror(process.pid < 0 ? fork_problem : problem)));
  }
  if (options.is_isolated) {
    setpgid(process.pid, process.pid);  // both sides, so that neither is late
    const std::string prefix = detail::concat("[", rank, "] ");
    process.out = {out.read_end, STDOUT_FILENO, LinePrefixer(prefix)};
    process.err = {err.read_end, STDERR_FILENO, LinePrefixer(prefix)};
  }
  return process;
}

}  // namespace accelerate::cli
