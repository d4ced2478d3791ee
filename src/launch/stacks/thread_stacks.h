#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace accelerate::detail {

struct ThreadStack {
  long thread = 0;
  /// Function names, the innermost first.
  std::vector<std::string> frames;

  bool operator==(const ThreadStack&) const = default;
};

/// The stacks of all threads of a process at one moment.
struct ProcessStacks {
  pid_t process = 0;
  std::vector<ThreadStack> threads;
  /// Why there are no stacks, and what to do; empty if there are.
  std::string problem;
};

/// Takes stacks of other processes, without their cooperation, using eu-stack
/// (elfutils) or else gdb. The process is stopped meanwhile. The system allows
/// this for processes started by this one, and for others of the same user
/// unless restricted (kernel.yama.ptrace_scope).
class StackTaker {
 public:
  /// Looks for the tools in the colon-separated directories of `path`.
  explicit StackTaker(std::string_view path);

  /// Returns within `timeout`.
  [[nodiscard]] ProcessStacks take(
      pid_t process,
      std::chrono::milliseconds timeout = std::chrono::seconds(20)) const;

 private:
  std::string eu_stack_;
  std::string gdb_;
};

/// Parses the stacks in the output of eu-stack or gdb.
std::vector<ThreadStack> parse_stacks(std::string_view text);

/// A process's stacks, and its name in a listing, such as "rank 3".
struct NamedStacks {
  std::string name;
  ProcessStacks stacks;
};

/// Formats a listing in which threads with equal stacks, in one process or
/// several, share one entry. Every line ends with a line break.
std::string describe(std::span<const NamedStacks> processes);

}  // namespace accelerate::detail
