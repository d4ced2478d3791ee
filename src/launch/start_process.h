#pragma once

#include <string>
#include <vector>

#include <sched.h>
#include <sys/types.h>

namespace accelerate::detail {

/// A pipe whose ends no program that is started later inherits.
class Pipe {
 public:
  /// Throws ConfigError if the system refuses.
  Pipe();
  Pipe(Pipe&& other) noexcept;
  Pipe& operator=(Pipe&& other) noexcept;
  ~Pipe();

  [[nodiscard]] int read_end() const { return read_end_; }
  [[nodiscard]] int write_end() const { return write_end_; }
  /// The caller closes it from now on.
  int release_read_end();
  void close_write_end();

 private:
  int read_end_ = -1;
  int write_end_ = -1;
};

/// What to start, and how.
struct ProcessStart {
  std::string program;
  /// The program's name first.
  std::vector<std::string> arguments;
  /// All of its environment, as NAME=VALUE.
  std::vector<std::string> variables;
  /// Standard output and standard error. -1: as this process's, and standard
  /// input as well. Otherwise, standard input is empty, and the process leads a
  /// process group of its own.
  int out = -1;
  int err = -1;
  /// One more descriptor that stays open in it, under the same number; or -1.
  int kept = -1;
  /// Processors to bind it to; null: as this process.
  const cpu_set_t* processors = nullptr;
  /// Signals are neither blocked nor ignored in it, whatever this process does.
  bool resets_signals = false;
};

struct StartedProcess {
  pid_t pid = -1;
  /// Why it could not be started, as in errno; 0: it runs.
  int problem = 0;
};

/// Starts a process that is killed when the thread that started it ends,
/// however it ends.
StartedProcess start_process(ProcessStart start);

}  // namespace accelerate::detail
