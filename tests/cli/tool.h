#pragma once

#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace accelerate::testing {

struct ToolResult {
  int code = -1;  ///< as a shell reports it
  std::string out;
  std::string err;
};

/// Runs the built accelerate-cpp with `arguments` and adds `variables` to a
/// plain environment (PATH and a HOME without a config file).
class Tool {
 public:
  explicit Tool(
      const std::vector<std::string>& arguments,
      const std::map<std::string, std::string>& variables = {});
  ~Tool();
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Waits for a complete line on the tool's standard output.
  std::string read_line();
  ToolResult wait();
  /// Number of bytes on its standard output that are not read yet.
  [[nodiscard]] int num_unread() const;
  /// Waits for its end without reading its output. Returns its exit code.
  int wait_unread();

 private:
  int reap();

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  int code_ = -1;
  std::string unread_;
};

/// Returns a port on which no program listens, on any address.
std::string free_port();

ToolResult run_tool(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& variables = {});

}  // namespace accelerate::testing
