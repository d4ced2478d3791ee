#include <accelerate/log.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/progress/screen.h"
#include "base/text/text.h"

namespace accelerate {

namespace {

constexpr std::array<std::string_view, 6>
    kNames{"debug", "info", "warning", "error", "critical", "off"};

std::string_view name_of_level(LogLevel level) {
  return kNames[static_cast<std::size_t>(level)];
}

double seconds_now() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// SGR codes: grey, plain, yellow, red, bold red.
std::string_view color_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "\x1b[90m";
    case LogLevel::warning:
      return "\x1b[33m";
    case LogLevel::error:
      return "\x1b[31m";
    case LogLevel::critical:
      return "\x1b[1;31m";
    default:
      return {};
  }
}

bool is_part_of(std::string_view name, std::string_view whole) {
  return name == whole ||
      (name.size() > whole.size() && name.starts_with(whole) &&
       name[whole.size()] == '.');
}

}  // namespace

LogSink standard_error_sink(const LogLineOptions& options) {
  return [options](const LogRecord& record) {
    std::string line = options.json ? format_log_json(record, seconds_now())
                                    : format_log_line(record);
    const std::string_view color = color_of(record.level);
    if (options.colors && !options.json && !color.empty())
      line = std::string(color) + line + "\x1b[0m";
    detail::ProgressScreen::of_standard_error().write_line(line);
  };
}

Logger::Logger() : sink_(standard_error_sink()) {}

Logger::Logger(LogSink sink, LogLevel level)
    : sink_(std::move(sink)), level_(level) {}

void Logger::log(
    LogLevel level,
    std::string_view area,
    std::string_view message) const {
  const LogLevel least = this->level(area);
  if (level < least || least == LogLevel::off) return;
  write({level, area, message, rank_});
}

void Logger::log_once_per_world(
    LogLevel level,
    std::string_view area,
    std::string_view message) const {
  if (rank_ <= 0) log(level, area, message);
}

void Logger::write(const LogRecord& record) const {
  if (sink_) sink_(record);
}

void Logger::set_levels(std::vector<NamedLogLevel> levels) {
  // The longest matching name comes first.
  std::ranges::stable_sort(
      levels, [](const NamedLogLevel& left, const NamedLogLevel& right) {
        return left.name.size() > right.name.size();
      });
  levels_ =
      std::make_shared<const std::vector<NamedLogLevel>>(std::move(levels));
}

LogLevel Logger::level(std::string_view name) const {
  if (!levels_) return level_;
  for (const NamedLogLevel& known : *levels_) {
    if (is_part_of(name, known.name)) return known.level;
  }
  return level_;
}

Logger Logger::also_to(LogSink second) const {
  Logger both = *this;
  both.sink_ = [first = sink_,
                second = std::move(second)](const LogRecord& record) {
    if (first) first(record);
    second(record);
  };
  return both;
}

LogLevel parse_log_level(std::string_view name) {
  const std::string lower = detail::to_lower(name);
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (lower == kNames[i]) return static_cast<LogLevel>(i);
  }
  throw ConfigError(detail::format(
      "[config] a log level must be debug, info, warning, error, critical or "
      "off, but is \"{}\"",
      detail::printable(name)));
}

std::vector<NamedLogLevel> parse_log_levels(std::string_view text) {
  std::vector<NamedLogLevel> levels;
  for (const std::string& piece : detail::split(text, ',')) {
    const std::string_view entry = detail::trim(piece);
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    const std::string_view name = detail::trim(entry.substr(0, equals));
    if (equals == std::string_view::npos || name.empty()) {
      throw ConfigError(detail::format(
          "[config] names and their log levels must be written as comm=debug, "
          "with commas in between, but one is \"{}\"",
          detail::printable(entry)));
    }
    levels.push_back(
        {std::string(name),
         parse_log_level(detail::trim(entry.substr(equals + 1)))});
  }
  return levels;
}

std::string format_log_line(const LogRecord& record) {
  const std::string_view level = name_of_level(record.level);
  if (!record.is_of_library) {
    if (record.area.empty())
      return detail::format("{}: {}", level, record.message);
    return detail::format("{}: {}: {}", level, record.area, record.message);
  }
  std::string line = "[accelerate";
  if (record.rank >= 0) line += detail::format(" rank {}", record.rank);
  line += detail::format("] {}: ", level);
  if (!record.area.empty()) line += detail::format("[{}] ", record.area);
  return line + std::string(record.message);
}

std::string format_log_json(const LogRecord& record, double seconds) {
  nlohmann::ordered_json json{
      {"time", seconds},
      {"level", name_of_level(record.level)},
      {"name",
       record.is_of_library ? detail::format("accelerate.{}", record.area)
                            : std::string(record.area)},
      {"rank", record.rank},
      {"message", record.message}};
  if (record.is_of_library && record.area.empty()) json["name"] = "accelerate";
  if (record.rank < 0) json["rank"] = nullptr;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace accelerate
