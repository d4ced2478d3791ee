#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/watch/terminal/dashboard.h"

namespace accelerate::cli {

/// The terminal while the tool draws on it: alternate screen, hidden cursor,
/// keys not read by the shell. The destructor and terminating signals restore
/// it. There is at most one.
class Terminal {
 public:
  /// Throws ConfigError if standard input and output are not a terminal.
  Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal();

  /// Whether both are a terminal that understands escape sequences. `type`: the
  /// value of TERM.
  static bool is_usable(const std::optional<std::string>& type);

  [[nodiscard]] ScreenSize size() const;
  void show(const std::vector<std::string>& lines);

  enum class Wake { key, time, resize, end };
  /// Waits for a key, a resize, a terminating signal, or the time limit. Keys
  /// are appended to `input`.
  Wake wait(std::chrono::milliseconds longest, std::string& input);
};

}  // namespace accelerate::cli
