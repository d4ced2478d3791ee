#include "launch/stacks/thread_stacks.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/text/text.h"
#include "launch/processes/start_process.h"

namespace accelerate::detail {

namespace {

using Clock = std::chrono::steady_clock;

std::string find_program(std::string_view path, const std::string& name) {
  for (const std::string& directory : split(path, ':')) {
    std::string program = format("{}/{}", directory, name);
    std::error_code ignored;
    if (std::filesystem::is_regular_file(program, ignored) &&
        ::access(program.c_str(), X_OK) == 0)
      return program;
  }
  return {};
}

struct Output {
  std::string text;
  bool is_complete = false;
};

// Reads a program's output until it ends or times out.
Output run(
    std::vector<std::string> arguments,
    std::chrono::milliseconds timeout) {
  Pipe pipe;
  ProcessStart start;
  start.program = arguments.front();
  start.arguments = std::move(arguments);
  // Function names do not depend on the locale.
  start.variables = {"LC_ALL=C", "HOME=/", "DEBUGINFOD_URLS="};
  start.out = pipe.write_end();
  start.err = pipe.write_end();
  start.resets_signals = true;
  const StartedProcess started = start_process(std::move(start));
  if (started.problem != 0)
    return {format("cannot start: {}", std::strerror(started.problem)), true};
  pipe.close_write_end();
  Output output;
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd wait{pipe.read_end(), POLLIN, 0};
    const int ready =
        ::poll(&wait, 1, static_cast<int>(std::max<long>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    char block[4096];
    const ssize_t count = ::read(pipe.read_end(), block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      output.is_complete = true;
      break;
    }
    output.text.append(block, static_cast<std::size_t>(count));
  }
  ::kill(-started.pid, SIGKILL);
  while (::waitpid(started.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return output;
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }

// Parses the thread id in "TID 12:" or "Thread 1 (Thread 0x7f (LWP 12)
// "name"):".
std::optional<long> thread_of(std::string_view line) {
  std::string_view rest;
  if (line.starts_with("TID ")) {
    rest = line.substr(4);
  } else if (line.starts_with("Thread ")) {
    const std::size_t number = line.find("LWP ");
    if (number == std::string_view::npos) return std::nullopt;
    rest = line.substr(number + 4);
  } else {
    return std::nullopt;
  }
  const auto end = std::ranges::find_if_not(rest, is_digit);
  const auto value =
      parse_int(rest.substr(0, static_cast<std::size_t>(end - rest.begin())));
  if (!value) return std::nullopt;
  return static_cast<long>(*value);
}

// Parses the function in "#3 0x00007ff name (arguments) at file:12".
std::optional<std::string> frame_of(std::string_view line) {
  if (line.size() < 2 || line[0] != '#' || !is_digit(line[1]))
    return std::nullopt;
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::string_view rest = trim(line.substr(space));
  std::string_view address;
  if (rest.starts_with("0x")) {
    const std::size_t end = rest.find(' ');
    address = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{}
                                         : trim(rest.substr(end));
    if (rest.starts_with("in ")) rest = trim(rest.substr(3));
    if (rest.starts_with("- 1")) rest = trim(rest.substr(3));
  }
  // A function without a name is identified by its address.
  return printable(rest.empty() ? address : rest);
}

std::string why_refused(pid_t process, const std::string& output) {
  const std::string said =
      output.empty() ? std::string("nothing was printed") : output;
  return format(
      "the stacks of process {} cannot be taken ({}): run as root or as its "
      "user, and allow tracing: sysctl kernel.yama.ptrace_scope=0, or for a "
      "container --cap-add SYS_PTRACE",
      process,
      printable(trim(said)));
}

}  // namespace

StackTaker::StackTaker(std::string_view path)
    : eu_stack_(find_program(path, "eu-stack")),
      gdb_(find_program(path, "gdb")) {}

ProcessStacks StackTaker::take(pid_t process, std::chrono::milliseconds timeout)
    const {
  ProcessStacks stacks;
  stacks.process = process;
  if (eu_stack_.empty() && gdb_.empty()) {
    stacks.problem =
        "no stacks, since neither eu-stack nor gdb is on "
        "PATH; install elfutils";
    return stacks;
  }
  const std::string number = std::to_string(process);
  const Output output = eu_stack_.empty()
      ? run({gdb_, "-p", number, "-nx", "-batch", "-ex", "thread apply all bt"},
            timeout)
      : run({eu_stack_, "-p", number}, timeout);
  stacks.threads = parse_stacks(output.text);
  if (!stacks.threads.empty()) return stacks;
  stacks.problem = output.is_complete
      ? why_refused(process, output.text)
      : format(
            "the stacks of process {} did not arrive within {} ms",
            process,
            timeout.count());
  return stacks;
}

std::vector<ThreadStack> parse_stacks(std::string_view text) {
  std::vector<ThreadStack> threads;
  for (const std::string& line : split(text, '\n')) {
    if (const auto thread = thread_of(line)) {
      threads.push_back({*thread, {}});
    } else if (auto frame = frame_of(line); frame && !threads.empty()) {
      threads.back().frames.push_back(std::move(*frame));
    }
  }
  std::erase_if(
      threads, [](const ThreadStack& thread) { return thread.frames.empty(); });
  return threads;
}

std::string describe(std::span<const NamedStacks> processes) {
  struct Entry {
    std::vector<std::string> names;
    const std::vector<std::string>* frames;
  };
  std::string text;
  std::vector<Entry> entries;
  for (const NamedStacks& process : processes) {
    if (!process.stacks.problem.empty())
      text += format("{}: {}\n", process.name, process.stacks.problem);
    for (const ThreadStack& thread : process.stacks.threads) {
      const std::string name = thread.thread == process.stacks.process
          ? process.name
          : format("{}, thread {}", process.name, thread.thread);
      const auto same = std::ranges::find_if(entries, [&](const Entry& entry) {
        return *entry.frames == thread.frames;
      });
      if (same == entries.end()) {
        entries.push_back({{name}, &thread.frames});
      } else {
        same->names.push_back(name);
      }
    }
  }
  for (const Entry& entry : entries) {
    text += format("{}:\n", join(entry.names, "; "));
    for (const std::string& frame : *entry.frames)
      text += format("    {}\n", frame);
  }
  return text;
}

}  // namespace accelerate::detail
