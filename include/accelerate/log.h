#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/export.h>

namespace accelerate {

/// The severity of a message; a logger drops those below its own level. From
/// `debug` over `info`, `warning` and `error` to `critical`; with `off` as its
/// level, a logger drops all.
enum class LogLevel { debug, info, warning, error, critical, off };

/// One message on its way to the sink.
struct LogRecord {
  /// How severe it is.
  LogLevel level = LogLevel::info;
  /// The area of the library that logs, such as "parallel", or the name of the
  /// program's own logger.
  std::string_view area;
  /// The text, without a line ending. Valid during the call of the sink only.
  std::string_view message;
  /// Rank of the process (or of the thread that acts as one), -1 before one is
  /// known.
  int rank = -1;
  /// False for messages of World::logger().
  bool is_of_library = true;
};

/// Receives every message that passes a logger's level, on the logging thread.
using LogSink = std::function<void(const LogRecord&)>;

/// The level of the messages of one area or named logger.
struct NamedLogLevel {
  /// The area or the logger's name; also applies to names below it, after a
  /// dot.
  std::string name;
  /// The lowest level that is shown.
  LogLevel level = LogLevel::warning;

  bool operator==(const NamedLogLevel&) const = default;
};

/// Minimum levels and a sink for messages. Each Accelerator holds its own, so
/// that several in one process do not interfere. Copies share only the sink's
/// own state. Thread-safe if the sink is.
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
  /// Passes a record to the sink as it is, whatever its level.
  void write(const LogRecord& record) const;
  /// Returns the same logger with a second sink that gets the same records.
  [[nodiscard]] Logger also_to(LogSink second) const;

  /// Sets the level of all names without one of their own.
  void set_level(LogLevel level) { level_ = level; }
  /// Levels of areas and names that differ from level(). One for "data" also
  /// applies to "data.loading", unless that has its own.
  void set_levels(std::vector<NamedLogLevel> levels);
  /// Sets the rank of later records.
  void set_rank(int rank) { rank_ = rank; }
  [[nodiscard]] LogLevel level() const { return level_; }
  /// The level, or that of an area or name.
  [[nodiscard]] LogLevel level(std::string_view name) const;

 private:
  LogSink sink_;
  LogLevel level_ = LogLevel::warning;
  std::shared_ptr<const std::vector<NamedLogLevel>> levels_;
  int rank_ = -1;
};

/// Parses "debug", "info", "warning", "error", "critical" or "off", in any
/// case. Throws ConfigError for another name.
ACCELERATE_API LogLevel parse_log_level(std::string_view name);

/// Parses "comm=debug,track=info", the form of ACCELERATE_CPP_LOG. Throws
/// ConfigError naming the entry that is wrong.
ACCELERATE_API std::vector<NamedLogLevel> parse_log_levels(
    std::string_view text);

/// Formats a record as the default sink does, without the newline.
ACCELERATE_API std::string format_log_line(const LogRecord& record);

/// Formats a record as one JSON object, {"time", "level", "name", "rank",
/// "message"}, without a newline. `seconds` since 1970.
ACCELERATE_API std::string format_log_json(
    const LogRecord& record,
    double seconds);

/// How standard_error_sink() writes.
struct LogLineOptions {
  /// One JSON object per line instead of plain lines.
  bool json = false;
  /// Colours by level, for a terminal.
  bool colors = false;
};

/// Writes lines to standard error, above any progress bars. Thread-safe; each
/// line is one write, so that lines of several processes do not mix.
ACCELERATE_API LogSink standard_error_sink(const LogLineOptions& options = {});

}  // namespace accelerate
