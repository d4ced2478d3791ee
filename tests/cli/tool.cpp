#include "cli/tool.h"

#include <cstdlib>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accelerate::testing {

namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string read_to_end(int pipe) {
  std::string text;
  char block[4096];
  for (ssize_t count = 0; (count = read(pipe, block, sizeof block)) > 0;) {
    text.append(block, static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

Tool::Tool(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& variables) {
  std::vector<std::string> words{ACCELERATE_TOOL};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const char* path = std::getenv("PATH");
  std::map<std::string, std::string> all{
      {"PATH", path != nullptr ? path : "/usr/bin:/bin"},
      {"HOME", "/nonexistent"}};
  for (const auto& [name, value] : variables) all[name] = value;
  std::vector<std::string> environment;
  for (const auto& [name, value] : all)
    environment.push_back(name + "=" + value);

  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
    throw std::runtime_error("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  auto word_pointers = pointers_to(words);
  auto variable_pointers = pointers_to(environment);
  const int error = posix_spawn(
      &pid_,
      words[0].c_str(),
      &actions,
      nullptr,
      word_pointers.data(),
      variable_pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  if (error != 0) throw std::runtime_error("cannot start " + words[0]);
}

Tool::~Tool() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_);
  close(err_);
}

std::string Tool::read_line() {
  std::string line;
  for (char c = 0; read(out_, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

ToolResult Tool::wait() {
  ToolResult result;
  std::thread reader([&] { result.err = read_to_end(err_); });
  result.out = read_to_end(out_);
  reader.join();
  if (pid_ > 0) code_ = reap();
  result.code = code_;
  return result;
}

int Tool::num_unread() const {
  int count = 0;
  ::ioctl(out_, FIONREAD, &count);
  return count;
}

int Tool::wait_unread() { return code_ = reap(); }

int Tool::reap() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address);
  socklen_t length = sizeof address;
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(descriptor);
  return std::to_string(ntohs(address.sin_port));
}

ToolResult run_tool(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& variables) {
  return Tool(arguments, variables).wait();
}

}  // namespace accelerate::testing
