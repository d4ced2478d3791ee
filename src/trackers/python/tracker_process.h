#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "config/environment.h"
#include "trackers/tracker_patience.h"

namespace accelerate::detail {

struct TrackerProcessOptions {
  /// Path of the interpreter, or a name to look up in PATH.
  std::string python = "python3";
  /// The complete environment of the process.
  Environment environment;
  /// How long the process may take to answer.
  std::chrono::seconds longest_wait{300};
  /// The patience that all of a run's trackers share.
  std::shared_ptr<const TrackerPatience> patience =
      std::make_shared<TrackerPatience>();
};

/// A Python process that makes a tracker's calls. It reads requests from its
/// own socket, so what a package prints goes where this process prints. If this
/// process dies, it ends the run and exits. Not thread-safe.
class TrackerProcess {
 public:
  using Options = TrackerProcessOptions;

  /// Throws ConfigError if there is no such interpreter.
  explicit TrackerProcess(Options options);
  TrackerProcess(const TrackerProcess&) = delete;
  TrackerProcess& operator=(const TrackerProcess&) = delete;
  /// Leaves it to the process to end its run, if that has not happened yet.
  ~TrackerProcess();

  /// Sends a line and returns the answer line. Throws Error if the process has
  /// ended, does not answer in time, or answers without end; both end the
  /// process.
  std::string ask(std::string_view line);
  /// Like ask(), for the last line: packages then upload what is left, which
  /// may take as long as `longest_wait`.
  std::string ask_last(std::string_view line);
  /// Waits until the process exits by itself; kills it if that takes too long.
  void wait();
  [[nodiscard]] bool is_running() const { return pid_ > 0; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  void await(short event, const char* otherwise);
  void send_line(std::string_view line);
  std::string receive_line();
  [[noreturn]] void give_up(const std::string& reason);
  void end();
  bool reap();

  Options options_;
  pid_t pid_ = -1;
  int socket_ = -1;
  std::string received_;  // what came after the last line
  bool is_last_ = false;
  TrackerPatience::Clock::time_point waiting_since_;
};

/// The path of a program, looked up in PATH unless `name` is already a path;
/// empty if there is none.
std::string path_of_program(
    const std::string& name,
    const Environment& environment);

/// The program that a TrackerProcess runs: tracker_process.py, which the build
/// embeds in the library.
extern const std::string_view kTrackerScript;

}  // namespace accelerate::detail
