#include "support/tracked_run.h"

#include <any>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <accelerate/error.h>
#include <accelerate/tracker.h>

#include "support/recorded_calls.h"
#include "support/tracker_case.h"
#include "track/run_tracking.h"

namespace accelerate::testing {

using detail::RunTracking;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// Notes the same calls as the recorded tracker.
class NotingTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "custom"; }
  void store_init_configuration(const TrackedValues& values) override {
    seen.push_back({"config", recorded_json(values)});
  }
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues&) override {
    seen.push_back(
        {"log", recorded_json(values), time.step ? json(*time.step) : json()});
  }
  [[nodiscard]] std::any tracker() override { return &seen; }

  json seen = json::array();
};

detail::RunTrackingOptions options_for(LogWith tracker) {
  detail::RunTrackingOptions options;
  options.log_with = {std::move(tracker)};
  options.journal = false;
  // Cases log things that some tools cannot; each would print a warning.
  options.logger = Logger([](const LogRecord&) {}, LogLevel::warning);
  return options;
}

void log_calls(
    RunTracking& tracking,
    const ordered_json& input,
    const std::string& layout) {
  for (const auto& call : input.at("calls")) {
    const LogTime time = recorded_time(call);
    if (call.at("call") == "log") {
      tracking.log(tracked_values(call.at("values")), time.step);
    } else {
      tracking.push({time, recorded_images(call, layout), call.at("key")});
    }
  }
}

// Returns the tracker's name, or the Python type of what it wraps.
json found_tracker(RunTracking& tracking, const ordered_json& input) {
  try {
    const auto tracker = tracking.get_tracker(input.at("ask"));
    if (!input.at("unwrap")) return tracker->name();
    if (std::any_cast<json*>(tracker->tracker()) != nullptr) return "list";
    return nullptr;
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
}

// The configuration of a recorded init_trackers(); None is none.
std::optional<TrackedValues> config_of(const ordered_json& input) {
  const ordered_json& config = input.at("config");
  if (config.is_null()) return std::nullopt;
  return tracked_values(config);
}

}  // namespace

json run_with_tracker(const ordered_json& input) {
  const TrackerCase recorded(input);
  const detail::TrackerRequest request = recorded.request();
  detail::RunTrackingOptions options = options_for(recorded.kind());
  options.logging_dir = request.logging_dir;
  options.environment = request.environment;
  json failure;
  try {
    RunTracking tracking(std::move(options));
    tracking.init_trackers(
        request.project_name,
        config_of(input),
        {{recorded.kind(), request.init_kwargs}});
    log_calls(tracking, input, recorded.layout());
    tracking.finish();
  } catch (const ConfigError& error) {
    failure = {{"error", error.what()}};
  }
  return recorded.outcome(failure);
}

json run_with_own_tracker(const ordered_json& input) {
  const auto own = std::make_shared<NotingTracker>();
  RunTracking tracking(options_for(own));
  tracking.init_trackers(input.at("project"), config_of(input), {});
  log_calls(tracking, input, "NCHW");
  const json found = found_tracker(tracking, input);
  tracking.finish();
  return {{"failure", nullptr}, {"get_tracker", found}, {"seen", own->seen}};
}

}  // namespace accelerate::testing
