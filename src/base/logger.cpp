#include <accelerate/logger.h>

#include <mutex>
#include <set>
#include <tuple>
#include <utility>

namespace accelerate {

struct NamedLogger::State {
  detail::LoggerPlace place;
  std::string name;
  std::string prefix;
  std::mutex mutex = {};
  /// The arguments of earlier warning_once() calls.
  std::set<std::tuple<bool, bool, std::string>> warnings = {};
};

NamedLogger::NamedLogger(
    detail::LoggerPlace place,
    std::string name,
    LogLevel level)
    : state_(std::make_shared<State>()), level_(level) {
  state_->prefix = detail::format("[RANK {}] ", place.rank);
  state_->place = std::move(place);
  state_->name = std::move(name);
}

const std::string& NamedLogger::name() const { return state_->name; }

bool NamedLogger::writes(const LogOptions& options) const {
  return !options.main_process_only || state_->place.rank == 0;
}

void NamedLogger::write(
    LogLevel level,
    const LogOptions& options,
    std::string_view message) const {
  const detail::LoggerPlace& place = state_->place;
  const std::string text = state_->prefix + std::string(message);
  const LogRecord record{
      .level = level,
      .area = state_->name,
      .message = text,
      .rank = place.rank,
      .is_of_library = false};
  if (!options.in_order) {
    place.logger.write(record);
    return;
  }
  for (int rank = 0; rank < place.size; ++rank) {
    if (rank == place.rank) place.logger.write(record);
    if (place.size > 1 && place.barrier) place.barrier();
  }
}

void NamedLogger::write_once(
    const LogOptions& options,
    const std::string& message) const {
  {
    const std::lock_guard lock(state_->mutex);
    const bool is_new =
        state_->warnings
            .emplace(options.main_process_only, options.in_order, message)
            .second;
    if (!is_new) return;
  }
  if (!is_enabled(LogLevel::warning)) return;
  if (options.in_order || writes(options))
    write(LogLevel::warning, options, message);
}

}  // namespace accelerate
