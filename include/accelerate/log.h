#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <accelerate/export.h>

namespace accelerate {

/// The severity of a message; a logger drops those below its own level.
enum class LogLevel { debug, info, warning, error, off };

/// One message on its way to the sink.
struct LogRecord {
  LogLevel level = LogLevel::info;
  /// The area of the library that logs, such as "parallel".
  std::string_view area;
  std::string_view message;
  /// Rank of the process (or of the thread that acts as one), -1 before one is
  /// known.
  int rank = -1;
};

/// Receives every message that passes a logger's level, on the thread that logs.
using LogSink = std::function<void(const LogRecord&)>;

/// A minimum level and a sink for messages. Each Accelerator holds its own, so
/// that several in one process do not interfere. Copies share only the sink's
/// own state. Safe for several threads if the sink is.
class ACCELERATE_API Logger {
 public:
  /// Writes "[accelerate] warning: message" lines to standard error.
  Logger();
  Logger(LogSink sink, LogLevel level);

  /// Logs on every rank.
  void log(LogLevel level, std::string_view area, std::string_view message)
      const;
  /// Logs on rank 0 only (or while no rank is known).
  void log_once_per_world(
      LogLevel level,
      std::string_view area,
      std::string_view message) const;

  void set_level(LogLevel level) { level_ = level; }
  void set_rank(int rank) { rank_ = rank; }
  [[nodiscard]] LogLevel level() const { return level_; }

 private:
  LogSink sink_;
  LogLevel level_ = LogLevel::warning;
  int rank_ = -1;
};

/// Parses "debug", "info", "warning", "error" or "off", in any case. Throws
/// ConfigError for another name.
ACCELERATE_API LogLevel parse_log_level(std::string_view name);

/// The line of the default sink, without its newline.
ACCELERATE_API std::string format_log_line(const LogRecord& record);

}  // namespace accelerate
