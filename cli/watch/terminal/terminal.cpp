#include "cli/watch/terminal/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[2J";
constexpr std::string_view kLeave = "\x1b[0m\x1b[?25h\x1b[?1049l";
constexpr std::array kEnding{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kCrashes{SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};

// Global, because signal handlers have no other access to them.
termios saved;
int wake_pipe[2] = {-1, -1};
volatile sig_atomic_t has_ended = 0;
volatile sig_atomic_t has_resized = 0;

void write_terminal(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// Safe to call in a signal handler.
void restore() {
  write_terminal(kLeave);
  tcsetattr(STDIN_FILENO, TCSANOW, &saved);
}

void on_signal(int signal) {
  const int error = errno;
  if (signal == SIGWINCH) {
    has_resized = 1;
  } else {
    has_ended = 1;
  }
  const char byte = 0;
  (void)!write(wake_pipe[1], &byte, 1);
  errno = error;
}

void on_crash(int signal) {
  restore();
  // Takes the default action, which the handler's flags have restored.
  raise(signal);
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

}  // namespace

bool Terminal::is_usable(const std::optional<std::string>& type) {
  return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 && type &&
      *type != "dumb";
}

Terminal::Terminal() {
  if (tcgetattr(STDIN_FILENO, &saved) != 0 ||
      pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
    throw ConfigError(detail::format(
        "the terminal cannot be used: {}", std::strerror(errno)));
  has_ended = 0;
  has_resized = 0;
  for (const int signal : kEnding) handle(signal, on_signal, SA_RESTART);
  handle(SIGWINCH, on_signal, SA_RESTART);
  for (const int signal : kCrashes) handle(signal, on_crash, SA_RESETHAND);
  termios raw = saved;
  cfmakeraw(&raw);
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  write_terminal(kEnter);
}

Terminal::~Terminal() {
  restore();
  for (const int signal : kEnding) handle(signal, SIG_DFL, 0);
  for (const int signal : kCrashes) handle(signal, SIG_DFL, 0);
  handle(SIGWINCH, SIG_DFL, 0);
  close(wake_pipe[0]);
  close(wake_pipe[1]);
}

ScreenSize Terminal::size() const {
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 ||
      window.ws_row == 0)
    return {};
  return {window.ws_col, window.ws_row};
}

void Terminal::show(const std::vector<std::string>& lines) {
  // Written all at once, so that nothing flickers.
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\r\n";
    text += lines[i] + "\x1b[K";
  }
  write_terminal(text + "\x1b[J");
}

Terminal::Wake Terminal::wait(
    std::chrono::milliseconds longest,
    std::string& input) {
  pollfd waits[2] = {{STDIN_FILENO, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}};
  if (has_ended == 0 && has_resized == 0)
    poll(waits, 2, static_cast<int>(longest.count()));
  std::array<char, 64> bytes{};
  while (read(wake_pipe[0], bytes.data(), bytes.size()) > 0) {
  }
  if (has_ended != 0) return Wake::end;
  if (has_resized != 0) {
    has_resized = 0;
    return Wake::resize;
  }
  if (waits[0].revents == 0) return Wake::time;
  const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
  // The terminal is gone.
  if (count == 0 || (count < 0 && errno != EINTR)) return Wake::end;
  if (count > 0) input.append(bytes.data(), static_cast<std::size_t>(count));
  return Wake::key;
}

}  // namespace accelerate::cli
