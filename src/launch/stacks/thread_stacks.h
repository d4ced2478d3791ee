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
  /// Functions, the innermost first.
  std::vector<std::string> frames;

  bool operator==(const ThreadStack&) const = default;
};

/// The stacks of all threads of a process at one moment.
struct ProcessStacks {
  pid_t process = 0;
  std::vector<ThreadStack> threads;
  /// Why there are none, and what to do; empty if there are.
  std::string problem;
};

/// Takes stacks of other processes, without their help, by eu-stack
/// (elfutils) or else gdb. The process is stopped for as long as it takes. The
/// system allows it for processes that this one started, and for those of the
/// same user where it is not restricted (kernel.yama.ptrace_scope).
class StackTaker {
 public:
  /// Looks for the tools in the directories of `path`, which is separated by
  /// colons.
  explicit StackTaker(std::string_view path);

  /// Returns within `timeout`.
  [[nodiscard]] ProcessStacks take(
      pid_t process,
      std::chrono::milliseconds timeout = std::chrono::seconds(20)) const;

 private:
  std::string eu_stack_;
  std::string gdb_;
};

/// The stacks in what eu-stack or gdb printed.
std::vector<ThreadStack> parse_stacks(std::string_view text);

/// A process with the name that it has in a listing: "rank 3".
struct NamedStacks {
  std::string name;
  ProcessStacks stacks;
};

/// A listing in which threads with equal stacks, in one process or several,
/// share one entry. Lines end with a line break.
std::string describe(std::span<const NamedStacks> processes);

}  // namespace accelerate::detail
