#include <accelerate/log.h>

#include <unistd.h>

#include <array>
#include <utility>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate {

namespace {

constexpr std::array<std::string_view, 5> kNames{
    "debug",
    "info",
    "warning",
    "error",
    "off"};

void write_to_stderr(const LogRecord& record) {
  const std::string line = format_log_line(record) + "\n";
  // One write per line, so that lines of several processes do not mix.
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

Logger::Logger() : sink_(write_to_stderr) {}

Logger::Logger(LogSink sink, LogLevel level)
    : sink_(std::move(sink)), level_(level) {}

void Logger::log(
    LogLevel level,
    std::string_view area,
    std::string_view message) const {
  if (level < level_ || level_ == LogLevel::off || !sink_) return;
  sink_(LogRecord{level, area, message, rank_});
}

void Logger::log_once_per_world(
    LogLevel level,
    std::string_view area,
    std::string_view message) const {
  if (rank_ <= 0) log(level, area, message);
}

LogLevel parse_log_level(std::string_view name) {
  const std::string lower = detail::to_lower(name);
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (lower == kNames[i]) return static_cast<LogLevel>(i);
  }
  throw ConfigError(detail::format(
      "[config] \"{}\" is not a log level; use debug, info, warning, error or "
      "off",
      name));
}

std::string format_log_line(const LogRecord& record) {
  std::string line = "[accelerate";
  if (record.rank >= 0) line += detail::format(" rank {}", record.rank);
  line +=
      detail::format("] {}: ", kNames[static_cast<std::size_t>(record.level)]);
  if (!record.area.empty()) line += detail::format("[{}] ", record.area);
  return line + std::string(record.message);
}

}  // namespace accelerate
