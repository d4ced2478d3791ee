#include "cli/processes/run_program.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/process/exec_pointers.h"
#include "base/text/text.h"
#include "launch/processes/exit_reason.h"

namespace accelerate::cli {

namespace {

using detail::format;

class Actions {
 public:
  Actions() { posix_spawn_file_actions_init(&actions_); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  ~Actions() { posix_spawn_file_actions_destroy(&actions_); }
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

pid_t spawn(std::vector<std::string> command, Actions& actions) {
  const std::vector<char*> pointers = detail::exec_pointers(command);
  pid_t pid = 0;
  const int problem = posix_spawn(
      &pid, pointers[0], actions.get(), nullptr, pointers.data(), environ);
  if (problem != 0) {
    throw ConfigError(
        format("cannot start {}: {}", command[0], std::strerror(problem)));
  }
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return detail::exit_code_of(status);
}

}  // namespace

std::filesystem::path own_path() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

std::filesystem::path find_libexec_program(const std::string& name) {
  const std::filesystem::path directory = own_path().parent_path();
  for (const auto& path :
       {directory / name, directory / ".." / "libexec" / "accelerate" / name}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  throw ConfigError(format(
      "the program {} is not beside the tool in {}; build or install "
      "accelerate.cpp with its LibTorch half",
      name,
      directory.string()));
}

Output run_program(const std::vector<std::string>& command) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    throw ConfigError(format("cannot make a pipe: {}", std::strerror(errno)));
  }
  Actions actions;
  posix_spawn_file_actions_adddup2(actions.get(), out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(actions.get(), err[1], STDERR_FILENO);
  const pid_t pid = spawn(command, actions);
  close(out[1]);
  close(err[1]);
  Output output;
  pollfd waits[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* const texts[2] = {&output.out, &output.err};
  for (int open = 2; open > 0;) {
    if (poll(waits, 2, -1) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      char block[4096];
      const ssize_t count = read(waits[i].fd, block, sizeof block);
      if (count > 0) {
        texts[i]->append(block, static_cast<std::size_t>(count));
      } else {
        close(std::exchange(waits[i].fd, -1));
        --open;
      }
    }
  }
  output.code = wait_for(pid);
  return output;
}

int run_shown(const std::vector<std::string>& command) {
  Actions actions;
  return wait_for(spawn(command, actions));
}

}  // namespace accelerate::cli
