#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <accelerate/detail/handles.h>
#include <accelerate/detail/message_text.h>
#include <accelerate/export.h>
#include <accelerate/log.h>

namespace accelerate {

/// Which ranks log a message.
struct LogOptions {
  /// Only rank 0 logs. If false, every rank does.
  bool main_process_only = true;
  /// Every rank logs, one after another, whatever `main_process_only` says.
  /// Collective: all ranks must make the call, with the same level in force.
  bool in_order = false;

  bool operator==(const LogOptions&) const = default;
};

namespace detail {

/// Where a named logger's messages go and which ranks write them.
struct LoggerPlace {
  Logger logger;
  int rank = 0;
  int size = 1;
  std::function<void()> barrier = {};
};

}  // namespace detail

/// A named logger for the program's own messages that knows the ranks; made by
/// World::logger(). The message is a literal with a `{}` for each value
/// (`{{` and `}}` are braces), checked at compile time; messages that are not
/// shown are not formatted:
///
///     const auto logger = accelerator.world().logger("train");
///     logger.info("epoch {}: loss {}", epoch, loss);
///     logger.warning({.main_process_only = false}, "no data on this rank");
///
/// Messages begin with "[RANK r] ". A cheap handle; copies share the memory of
/// warning_once(). Thread-safe, except with `in_order`.
class ACCELERATE_API NamedLogger {
  /// A message with a place for each value.
  template <class... Values>
  using Text = detail::MessageText<sizeof...(Values)>;

 public:
  NamedLogger(detail::LoggerPlace place, std::string name, LogLevel level);

  /// Logs a message with a value for each `{}`, if `level` is shown. Which
  /// ranks write it, and in which order: `options`.
  template <class... Values>
  void log(
      LogLevel level,
      const LogOptions& options,
      Text<Values...> message,
      const Values&... values) const {
    if (!is_enabled(level)) return;
    if (!options.in_order && !writes(options)) return;
    write(level, options, detail::format(message, values...));
  }

  template <class... Values>
  void debug(Text<Values...> message, const Values&... values) const {
    log(LogLevel::debug, {}, message, values...);
  }
  /// Logs details for debugging.
  template <class... Values>
  void debug(
      const LogOptions& options,
      Text<Values...> message,
      const Values&... values) const {
    log(LogLevel::debug, options, message, values...);
  }
  template <class... Values>
  void info(Text<Values...> message, const Values&... values) const {
    log(LogLevel::info, {}, message, values...);
  }
  /// Logs progress.
  template <class... Values>
  void info(
      const LogOptions& options,
      Text<Values...> message,
      const Values&... values) const {
    log(LogLevel::info, options, message, values...);
  }
  template <class... Values>
  void warning(Text<Values...> message, const Values&... values) const {
    log(LogLevel::warning, {}, message, values...);
  }
  /// Logs something that may be a mistake.
  template <class... Values>
  void warning(
      const LogOptions& options,
      Text<Values...> message,
      const Values&... values) const {
    log(LogLevel::warning, options, message, values...);
  }
  template <class... Values>
  void error(Text<Values...> message, const Values&... values) const {
    log(LogLevel::error, {}, message, values...);
  }
  /// Logs a failure that the program survives.
  template <class... Values>
  void error(
      const LogOptions& options,
      Text<Values...> message,
      const Values&... values) const {
    log(LogLevel::error, options, message, values...);
  }
  template <class... Values>
  void critical(Text<Values...> message, const Values&... values) const {
    log(LogLevel::critical, {}, message, values...);
  }
  /// Logs a failure that ends the program.
  template <class... Values>
  void critical(
      const LogOptions& options,
      Text<Values...> message,
      const Values&... values) const {
    log(LogLevel::critical, options, message, values...);
  }

  /// Like warning(), but logs the same message with the same options only once.
  template <class... Values>
  void warning_once(
      const LogOptions& options,
      Text<Values...> message,
      const Values&... values) const {
    write_once(options, detail::format(message, values...));
  }
  template <class... Values>
  void warning_once(Text<Values...> message, const Values&... values) const {
    write_once({}, detail::format(message, values...));
  }

  /// The name by which levels are set, shown with each message.
  [[nodiscard]] const std::string& name() const;
  /// The lowest level that is shown.
  [[nodiscard]] LogLevel level() const { return level_; }
  /// Sets that level, for this copy only.
  void set_level(LogLevel level) { level_ = level; }
  /// Whether messages of this level are shown.
  [[nodiscard]] bool is_enabled(LogLevel level) const {
    return level >= level_ && level != LogLevel::off && level_ != LogLevel::off;
  }

 private:
  struct State;

  [[nodiscard]] bool writes(const LogOptions& options) const;
  void write(
      LogLevel level,
      const LogOptions& options,
      std::string_view message) const;
  void write_once(const LogOptions& options, const std::string& message) const;

  detail::KeptPtr<State> state_;
  LogLevel level_;
};

}  // namespace accelerate
