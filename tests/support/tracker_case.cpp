#include "support/tracker_case.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/error.h>

#include "support/dvclive_record.h"
#include "support/mlflow_record.h"
#include "support/python_calls.h"
#include "support/recorded_calls.h"
#include "support/tensorboard_record.h"
#include "trackers/registry.h"

namespace accelerate::testing {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// Stands in for a tracker that the program made.
class OwnTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "custom"; }
};

LogWith recorded_choice(const std::string& name) {
  if (name == "custom") return std::make_shared<OwnTracker>();
  return name;
}

std::vector<LogWith> recorded_log_with(const ordered_json& value) {
  if (value.is_null()) return {};
  if (value.is_string()) return {recorded_choice(value)};
  std::vector<LogWith> log_with;
  for (const auto& each : value) log_with.push_back(recorded_choice(each));
  return log_with;
}

}  // namespace

bool needs_python(const ordered_json& input) {
  constexpr std::string_view kFiles[] = {"tensorboard", "mlflow", "dvclive"};
  const std::string kind = input.at("kind");
  return detail::find_tracker_class(kind).has_value() &&
      std::find(std::begin(kFiles), std::end(kFiles), kind) == std::end(kFiles);
}

TrackerCase::TrackerCase(const ordered_json& input) : input_(input) {}

detail::TrackerRequest TrackerCase::request() const {
  detail::TrackerRequest request;
  request.project_name = input_.at("project");
  request.begin = 1'700'000'000.25;
  request.logging_dir = input_.value("logging_dir", true) ? directory_ / "logs"
                                                          : directory_.path();
  if (input_.contains("init_kwargs"))
    request.init_kwargs = tracked_values(input_.at("init_kwargs"));
  if (needs_python(input_)) {
    request.environment = fake_package_environment(directory_ / "calls");
  }
  // Without these, the library writes the files of W&B and Trackio itself.
  if (kind() == "wandb") {
    request.environment.set("WANDB_DISABLED", "false");
    request.environment.set("WANDB_MODE", "online");
  } else if (kind() == "trackio") {
    request.environment.set("TRACKIO_SPACE_ID", "user/space");
  } else if (kind() == "dvclive") {
    request.init_kwargs.push_back({"dir", (directory_ / "live").string()});
  } else if (kind() == "mlflow") {
    request.environment.set(
        "MLFLOW_TRACKING_URI", "file://" + (directory_ / "mlruns").string());
    for (const auto& [name, value] : input_.at("env").items())
      request.environment.set(name, value.get<std::string>());
  }
  return request;
}

std::string TrackerCase::layout() const {
  return needs_python(input_) ? "NHWC" : "NCHW";
}

json TrackerCase::outcome(const json& failure) const {
  json result = {{"failure", failure}};
  if (kind() == "tensorboard") {
    result["files"] = recorded_tensorboard_files(directory_.path());
  } else if (kind() == "mlflow") {
    result["experiments"] = recorded_mlflow_experiments(directory_ / "mlruns");
  } else if (kind() == "dvclive") {
    result["files"] = recorded_dvclive_files(directory_ / "live");
  } else {
    result["calls"] =
        recorded_python_calls(directory_ / "calls", directory_.path());
  }
  return result;
}

json play_on_tracker(const ordered_json& input) {
  const TrackerCase recorded(input);
  json failure;
  try {
    const auto tracker =
        detail::find_tracker_class(recorded.kind())->make(recorded.request());
    make_recorded_calls(*tracker, input, recorded.layout());
  } catch (const ConfigError& error) {
    failure = {{"error", error.what()}};
  }
  return recorded.outcome(failure);
}

json choose_trackers(const ordered_json& input) {
  const auto installed = input.at("installed").get<std::vector<std::string>>();
  const auto is_installed = [&](const detail::TrackerClass& each) {
    return std::find(installed.begin(), installed.end(), each.name) !=
        installed.end();
  };
  const ordered_json& logging_dir = input.at("logging_dir");
  json names = json::array();
  try {
    for (const detail::ChosenTracker& each : detail::filter_trackers(
             recorded_log_with(input.at("log_with")),
             logging_dir.is_null() ? "" : logging_dir.get<std::string>(),
             is_installed))
      names.push_back(each.name);
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
  return {{"trackers", names}};
}

}  // namespace accelerate::testing
