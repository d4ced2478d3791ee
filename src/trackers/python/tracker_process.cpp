#include "trackers/python/tracker_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/process/exec_pointers.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

/// Actions and attributes of a posix_spawn.
class SpawnSetup {
 public:
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    // Without this, a package that asks for a key would wait forever.
    posix_spawn_file_actions_addopen(
        &actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    sigset_t none, pipe;
    sigemptyset(&none);
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &pipe);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }

  /// Lets the process inherit the descriptor.
  void keep(int descriptor) {
    // Duplicating onto itself clears the close-on-exec flag.
    posix_spawn_file_actions_adddup2(&actions_, descriptor, descriptor);
  }
  [[nodiscard]] const posix_spawn_file_actions_t* actions() const {
    return &actions_;
  }
  [[nodiscard]] const posix_spawnattr_t* attributes() const {
    return &attributes_;
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

// The longest line that is read, in bytes.
constexpr std::size_t kMostAnswerBytes = std::size_t{16} << 20U;

}  // namespace

std::string path_of_program(
    const std::string& name,
    const Environment& environment) {
  const auto is_program = [](const std::string& path) {
    return ::access(path.c_str(), X_OK) == 0 &&
        std::filesystem::is_regular_file(path);
  };
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  for (const std::string& directory :
       split(environment.get("PATH").value_or("/usr/bin:/bin"), ':')) {
    const std::string path = directory + "/" + name;
    if (!directory.empty() && is_program(path)) return path;
  }
  return "";
}

TrackerProcess::TrackerProcess(Options options) : options_(std::move(options)) {
  const std::string program =
      path_of_program(options_.python, options_.environment);
  if (program.empty()) {
    throw ConfigError(format(
        "[trackers] there is no Python interpreter \"{}\"; install one, or "
        "name another one with \"python\" in the tracker's init_kwargs or with "
        "ACCELERATE_PYTHON",
        printable(options_.python)));
  }
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(
        format("[trackers] cannot make a socket: {}", std::strerror(errno)));
  }
  socket_ = ends[0];
  std::vector<std::string> arguments{
      program, "-c", std::string(kTrackerScript), std::to_string(ends[1])};
  std::vector<std::string> variables;
  for (const auto& [name, value] : options_.environment.all())
    variables.push_back(name + "=" + value);
  SpawnSetup setup;
  setup.keep(ends[1]);
  const int problem = ::posix_spawn(
      &pid_,
      program.c_str(),
      setup.actions(),
      setup.attributes(),
      exec_pointers(arguments).data(),
      exec_pointers(variables).data());
  ::close(ends[1]);
  if (problem != 0) {
    pid_ = -1;
    ::close(std::exchange(socket_, -1));
    throw ConfigError(format(
        "[trackers] cannot start {}: {}", program, std::strerror(problem)));
  }
}

TrackerProcess::~TrackerProcess() {
  if (socket_ >= 0) ::close(socket_);
  if (is_running()) reap();
}

std::string TrackerProcess::ask(std::string_view line) {
  if (!is_running())
    throw Error(
        "[trackers] the tracker's Python process has ended unexpectedly");
  waiting_since_ = TrackerPatience::Clock::now();
  send_line(line);
  return receive_line();
}

std::string TrackerProcess::ask_last(std::string_view line) {
  is_last_ = true;
  return ask(line);
}

// Waits until the socket is ready.
void TrackerProcess::await(short event, const char* otherwise) {
  constexpr int kMilliseconds = 50;
  pollfd socket{socket_, event, 0};
  while (::poll(&socket, 1, kMilliseconds) == 0) {
    const auto waited = TrackerPatience::Clock::now() - waiting_since_;
    if (waited < options_.longest_wait &&
        (is_last_ || !options_.patience->is_over()))
      continue;
    give_up(format(
        "{} for {} s",
        otherwise,
        std::chrono::duration_cast<std::chrono::seconds>(waited).count()));
  }
}

void TrackerProcess::send_line(std::string_view line) {
  std::string text(line);
  text += '\n';
  for (std::size_t sent = 0; sent < text.size();) {
    await(POLLOUT, "has not taken what is logged");
    const ssize_t count = ::send(
        socket_,
        text.data() + sent,
        text.size() - sent,
        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) give_up("has ended");
    sent += static_cast<std::size_t>(count);
  }
}

std::string TrackerProcess::receive_line() {
  std::array<char, 4096> bytes{};
  std::size_t end = received_.find('\n');
  while (end == std::string::npos) {
    await(POLLIN, "has not answered");
    const ssize_t count =
        ::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) give_up("has ended");
    const std::size_t before = received_.size();
    received_.append(bytes.data(), static_cast<std::size_t>(count));
    end = received_.find('\n', before);
    if (end == std::string::npos && received_.size() > kMostAnswerBytes)
      give_up("answers without end");
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

void TrackerProcess::give_up(const std::string& reason) {
  end();
  throw Error(format(
      "[trackers] the tracker's Python process {}; nothing more is logged to "
      "it (its output may tell why)",
      reason));
}

void TrackerProcess::wait() {
  // The socket does not reveal the end, since a package's own processes may
  // hold it as well.
  constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 5'000'000};
  const auto deadline =
      std::chrono::steady_clock::now() + options_.longest_wait;
  while (is_running() && std::chrono::steady_clock::now() < deadline) {
    if (!reap()) ::nanosleep(&kPause, nullptr);
  }
  end();
}

bool TrackerProcess::reap() {
  if (::waitpid(pid_, nullptr, WNOHANG) == 0) return false;
  pid_ = -1;
  return true;
}

void TrackerProcess::end() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace accelerate::detail
