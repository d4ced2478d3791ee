#include <algorithm>
#include <any>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/encoding.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "trackers/feed/feed_item.h"
#include "trackers/keyword_arguments.h"
#include "trackers/media/pixels.h"
#include "trackers/mlflow/mlflow_store.h"
#include "trackers/tracker_request.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

namespace {

// Maximum number of values that wait while a store does not respond; beyond
// that, the oldest are dropped.
constexpr std::size_t kMostWaitingMetrics = 1'000'000;

struct MlflowOptions {
  std::string tracking_uri;
  MlflowExperiment experiment;
  std::string run_id;  ///< of a run to continue
  std::string run_name;
  std::vector<MlflowText> tags;
  std::string user;
  Environment environment;
  std::shared_ptr<const TrackerPatience> patience;
  double begin = 0;
};

std::int64_t milliseconds(double seconds) {
  return static_cast<std::int64_t>(seconds * 1000);
}

class MlflowTracker final : public GeneralTracker {
 public:
  MlflowTracker(
      MlflowOptions options,
      std::function<void(const std::string&)> warn)
      : options_(std::move(options)), warn_(std::move(warn)) {}

  [[nodiscard]] std::string name() const override { return "mlflow"; }

  void start() override {
    store_ = open_mlflow_store(
        options_.tracking_uri, options_.environment, options_.patience);
    if (options_.run_id.empty()) {
      std::error_code problem;
      const fs::path program = fs::read_symlink("/proc/self/exe", problem);
      MlflowNewRun run{
          .name = options_.run_name,
          .user = options_.user,
          .start_time = milliseconds(options_.begin),
          .tags = options_.tags};
      if (run.name.empty()) run.name = "run-" + random_token().substr(0, 8);
      run.tags.push_back({"mlflow.user", options_.user});
      run.tags.push_back({"mlflow.source.name", program.string()});
      run.tags.push_back({"mlflow.source.type", "LOCAL"});
      run.tags.push_back({"mlflow.runName", run.name});
      store_->create_run(options_.experiment, run);
    } else {
      store_->resume_run(options_.run_id, options_.run_name);
      if (!options_.run_name.empty())
        options_.tags.push_back({"mlflow.runName", options_.run_name});
      set_tags();
    }
    run_id_ = store_->run_id();
  }
  void store_init_configuration(const TrackedValues& values) override {
    std::vector<MlflowText> params;
    for (const NamedValue& each : values) {
      std::string text = each.value.str();
      if (num_characters(text) > kMostMlflowParamCharacters) {
        warn_once(
            each.name,
            format(
                "parameters for MLflow must have at most {} characters, but "
                "\"{}\" has {}; it is not logged",
                kMostMlflowParamCharacters,
                printable(each.name),
                num_characters(text)));
      } else if (const std::string why = complaint_about_mlflow_key(each.name);
                 !why.empty()) {
        warn_once(each.name, why);
      } else {
        params.push_back({each.name, std::move(text)});
      }
    }
    for (std::size_t i = 0; i < params.size(); i += kMostMlflowTexts) {
      store_->log_params(std::span<const MlflowText>(params).subspan(
          i, std::min(kMostMlflowTexts, params.size() - i)));
    }
  }
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override {
    const KeywordArguments arguments("mlflow's log_kwargs", options, {});
    for (const NamedValue& each : values) {
      const auto number = each.value.number();
      if (!number) {
        warn_once(
            each.name,
            format(
                "metrics for MLflow must be numbers, unlike \"{}\", which is "
                "not logged",
                printable(each.name)));
        continue;
      }
      if (const std::string why = complaint_about_mlflow_key(each.name);
          !why.empty()) {
        warn_once(each.name, why);
        continue;
      }
      waiting_.push_back(
          {.key = each.name,
           .value = *number,
           .timestamp = milliseconds(time.seconds),
           .step = time.step.value_or(0)});
    }
    if (waiting_.size() >= kMostMlflowMetrics) flush();
  }
  bool log_item(const TrackedItem& item) override {
    return take_item(*this, item);
  }
  bool take(const TrackedImages& images, const TrackedItem& item) {
    refuse_options(item);
    const std::vector<Pixels> separate = separate_images(images);
    const std::string step = std::to_string(item.time.step.value_or(0));
    for (std::size_t i = 0; i < separate.size(); ++i) {
      const std::string number =
          separate.size() == 1 ? "" : "_" + std::to_string(i);
      store_->write_artifact(
          "images/" + item.name + "/" + step + number + ".png",
          png_of(separate[i]));
    }
    return true;
  }
  bool take(const TrackedTable& table, const TrackedItem& item) {
    refuse_options(item);
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& row : table.rows) {
      nlohmann::json cells = nlohmann::json::array();
      for (const TrackedValue& each : row) {
        if (each.is_none()) {
          cells.push_back(nullptr);
        } else if (const auto number = each.number()) {
          cells.push_back(*number);
        } else {
          cells.push_back(each.str());
        }
      }
      rows.push_back(std::move(cells));
    }
    const nlohmann::json content = {{"columns", table.columns}, {"data", rows}};
    store_->write_artifact(
        item.name.ends_with(".json") ? item.name : item.name + ".json",
        content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return true;
  }
  bool take(const TrackedFigure& figure, const TrackedItem& item) {
    refuse_options(item);
    store_->write_artifact(
        item.name.ends_with(".svg") ? item.name : item.name + ".svg",
        figure.svg);
    return true;
  }
  bool take(const TrackedArtifact& artifact, const TrackedItem&) {
    const auto& [path, directory] = artifact;
    const fs::path source = fs::path(path) / "";
    const std::string below = directory.empty() ? "" : directory + "/";
    if (!fs::is_directory(path)) {
      store_->copy_artifact(below + fs::path(path).filename().string(), path);
      return true;
    }
    // A directory is added under its name.
    const fs::path base = source.lexically_normal().parent_path().parent_path();
    for (const auto& each : fs::recursive_directory_iterator(source)) {
      if (!each.is_regular_file()) continue;
      const fs::path name = each.path().lexically_normal().lexically_relative(
          base.empty() ? fs::path(".") : base);
      store_->copy_artifact(
          below + name.lexically_normal().string(), each.path());
    }
    return true;
  }
  void flush() override {
    std::size_t num_done = 0;
    try {
      while (num_done < waiting_.size()) {
        const auto batch = std::span<const MlflowMetric>(waiting_).subspan(
            num_done, std::min(kMostMlflowMetrics, waiting_.size() - num_done));
        store_->log_metrics(batch);
        num_done += batch.size();
      }
    } catch (...) {
      const std::size_t num_left = waiting_.size() - num_done;
      if (num_left > kMostWaitingMetrics) {
        warn_once(
            "",
            format(
                "MLflow's store fails for long, so that values are lost: more "
                "than {} wait",
                kMostWaitingMetrics));
        num_done = waiting_.size() - kMostWaitingMetrics;
      }
      waiting_.erase(
          waiting_.begin(),
          waiting_.begin() + static_cast<std::ptrdiff_t>(num_done));
      throw;
    }
    waiting_.clear();
    store_->flush();
  }
  void finish() override {
    flush();
    store_->end_run(now_in_milliseconds());
    store_.reset();
  }
  /// The id of the run, as std::string.
  [[nodiscard]] std::any tracker() override { return run_id_; }

 private:
  void refuse_options(const TrackedItem& item) const {
    KeywordArguments("mlflow's log_kwargs", item.options(name()), {});
  }
  void set_tags() {
    const std::span<const MlflowText> tags(options_.tags);
    for (std::size_t i = 0; i < tags.size(); i += kMostMlflowTexts)
      store_->set_tags(
          tags.subspan(i, std::min(kMostMlflowTexts, tags.size() - i)));
  }
  void warn_once(const std::string& name, const std::string& text) {
    if (warn_ && warned_.insert(name).second) warn_("[trackers] " + text);
  }

  MlflowOptions options_;
  std::function<void(const std::string&)> warn_;
  std::unique_ptr<MlflowStore> store_;
  std::string run_id_;
  std::vector<MlflowMetric> waiting_;
  std::set<std::string> warned_;
};

std::string user_of(const Environment& environment) {
  for (const char* const name :
       {"MLFLOW_TRACKING_USERNAME", "LOGNAME", "USER", "LNAME", "USERNAME"}) {
    if (const auto user = environment.get(name)) return *user;
  }
  return "unknown";
}

/// Tags from a JSON object in a variable, or from arguments.
std::vector<MlflowText> tags_of(
    const KeywordArguments& arguments,
    const Environment& environment) {
  std::vector<MlflowText> tags;
  const TrackedValue* const value = arguments.find("tags");
  std::optional<std::string> text = environment.get("MLFLOW_TAGS");
  if (!text && value && value->text()) text = *value->text();
  if (text) {
    const ParsedJson parsed = parse_json(*text);
    if (!parsed.complaint.empty() || !parsed.value.is_object()) {
      throw ConfigError(format(
          "[trackers] MLflow's tags (MLFLOW_TAGS or the argument tags) must be "
          "a JSON object such as {{\"team\": \"vision\"}}, but are {}",
          printable(*text)));
    }
    for (const auto& [name, each] : parsed.value.items()) {
      tags.push_back(
          {name, each.is_string() ? each.get<std::string>() : each.dump()});
    }
  } else if (value && value->map()) {
    for (const NamedValue& each : *value->map())
      tags.push_back({each.name, each.value.str()});
  } else if (value) {
    throw ConfigError(format(
        "[trackers] mlflow's tags must be named values, or a JSON object as a "
        "string, but are {}",
        printable(value->str())));
  }
  for (MlflowText& each : tags) {
    const std::string why = complaint_about_mlflow_key(each.key);
    if (!why.empty()) throw ConfigError("[trackers] " + why);
    each.value = first_characters(each.value, kMostMlflowTagCharacters);
  }
  return tags;
}

}  // namespace

std::unique_ptr<GeneralTracker> make_mlflow(const TrackerRequest& request) {
  const KeywordArguments arguments(
      "mlflow's init_kwargs",
      request.init_kwargs,
      {"logging_dir",
       "run_id",
       "tags",
       "nested_run",
       "run_name",
       "description"});
  const Environment& environment = request.environment;
  // A nested run belongs to an active one in the same process; this process has
  // no other run, so there is nothing to do.
  if (const TrackedValue* const nested = arguments.find("nested_run");
      nested && !nested->text()) {
    (void)arguments.flag("nested_run");
  }
  MlflowOptions options;
  options.tracking_uri = environment.get("MLFLOW_TRACKING_URI").value_or("");
  options.tags = tags_of(arguments, environment);
  options.experiment = MlflowExperiment{
      .name = environment.get("MLFLOW_EXPERIMENT_NAME")
                  .value_or(request.project_name),
      .artifact_location = arguments.text("logging_dir").value_or(""),
      .tags = options.tags};
  options.run_id = environment.get("MLFLOW_RUN_ID")
                       .value_or(arguments.text("run_id").value_or(""));
  options.run_name = arguments.text("run_name").value_or("");
  if (const auto description = arguments.text("description")) {
    constexpr std::string_view kNote = "mlflow.note.content";
    for (const MlflowText& each : options.tags) {
      if (each.key != kNote) continue;
      throw ConfigError(
          "[trackers] mlflow has both a description and the tag "
          "mlflow.note.content, which mean the same; leave one of them out");
    }
    options.tags.push_back(
        {std::string(kNote),
         first_characters(*description, kMostMlflowTagCharacters)});
  }
  options.user = user_of(environment);
  options.environment = environment;
  options.patience = request.patience;
  options.begin = request.begin;
  return std::make_unique<MlflowTracker>(std::move(options), request.warn);
}

}  // namespace accelerate::detail
