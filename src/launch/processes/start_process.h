#pragma once

#include <string>
#include <vector>

#include <sched.h>
#include <sys/types.h>

namespace accelerate::detail {

/// A pipe whose ends are not inherited by child programs (close-on-exec).
class Pipe {
 public:
  /// Throws ConfigError if the system call fails.
  Pipe();
  Pipe(Pipe&& other) noexcept;
  Pipe& operator=(Pipe&& other) noexcept;
  ~Pipe();

  [[nodiscard]] int read_end() const { return read_end_; }
  [[nodiscard]] int write_end() const { return write_end_; }
  /// Passes ownership of the read end to the caller.
  int release_read_end();
  void close_write_end();

 private:
  int read_end_ = -1;
  int write_end_ = -1;
};

/// The program to start, and its environment.
struct ProcessStart {
  std::string program;
  /// The arguments, beginning with the program's name.
  std::vector<std::string> arguments;
  /// The complete environment, as NAME=VALUE.
  std::vector<std::string> variables;
  /// Descriptors for standard output and standard error. -1: all three streams
  /// are those of this process. Otherwise, standard input is empty, and the
  /// process leads its own process group.
  int out = -1;
  int err = -1;
  /// Another descriptor that the process inherits, or -1.
  int kept = -1;
  /// Processors to bind the process to; null: inherits this process's.
  const cpu_set_t* processors = nullptr;
  /// Unblocks all signals in the process, and ignores none.
  bool resets_signals = false;
};

struct StartedProcess {
  pid_t pid = -1;
  /// 0 if the process is running; otherwise the errno of the failed start.
  int problem = 0;
};

/// Starts a process that is killed when the starting thread ends, however it
/// ends. Waits until the program runs, or cannot.
StartedProcess start_process(ProcessStart start);

/// A process that may not run its program yet: a slow disk can hold it up.
struct BegunProcess {
  pid_t pid = -1;
  /// The errno if no process could be made; otherwise 0.
  int problem = 0;
  /// Ends without a message once the program runs; otherwise an int, the errno
  /// of the failed start, after which the process exits with kNotStarted.
  Pipe report;
};
inline constexpr int kNotStarted = 127;

/// Starts a process as start_process() does, without waiting for the program.
BegunProcess begin_process(ProcessStart start);

}  // namespace accelerate::detail
