#include "trackers/python/python_tracker.h"

#include <any>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/encoding.h"
#include "base/text/text.h"
#include "trackers/feed/feed_item.h"
#include "trackers/python/python_json.h"
#include "trackers/python/tracker_process.h"

namespace accelerate::detail {

namespace {

/// Peculiarities of the trackers of Python packages.
struct PackageFacts {
  std::string_view name;
  bool requires_logging_directory;
  bool main_process_only;
  /// What to do without the package, for messages.
  std::string_view otherwise = "";
};

constexpr PackageFacts kPackages[] = {
    {"wandb",
     false,
     false,
     ", or set WANDB_MODE=offline, which needs none, and upload the run with "
     "`wandb sync`"},
    {"trackio", false, false},
    {"comet_ml", false, true},
    {"aim", true, true},
    {"clearml", false, true},
    {"swanlab", false, false}};

const PackageFacts& facts_of(std::string_view package) {
  for (const PackageFacts& each : kPackages) {
    if (each.name == package) return each;
  }
  throw InternalError(
      format("[trackers] no calls are defined for the package {}", package));
}

TrackedValue step_of(const LogTime& time) {
  return time.step ? TrackedValue(*time.step) : TrackedValue();
}

TrackedValue::List numbers(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

constexpr std::string_view kFinish = "finish";

// A package's answers may contain anything.
std::string text_of(const nlohmann::json& value) {
  return value.is_string()
      ? value.get<std::string>()
      : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class PythonTracker final : public GeneralTracker {
 public:
  PythonTracker(
      const PackageFacts& facts,
      TrackedValues start,
      TrackerProcessOptions options)
      : facts_(facts), start_(std::move(start)), options_(std::move(options)) {}

  [[nodiscard]] std::string name() const override {
    return std::string(facts_.name);
  }
  [[nodiscard]] bool requires_logging_directory() const override {
    return facts_.requires_logging_directory;
  }
  [[nodiscard]] bool main_process_only() const override {
    return facts_.main_process_only;
  }

  void start() override {
    process_ = std::make_unique<TrackerProcess>(options_);
    try {
      ask("start", start_);
    } catch (...) {
      process_.reset();
      throw;
    }
  }
  void store_init_configuration(const TrackedValues& values) override {
    ask("config", {{"values", values}});
  }
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override {
    ask("log",
        {{"values", values}, {"step", step_of(time)}, {"options", options}});
  }
  bool log_item(const TrackedItem& item) override {
    return take_item(*this, item);
  }
  bool take(const TrackedImages& images, const TrackedItem& item) {
    const TrackedValues content = {
        {"shape", TrackedValue::List(images.shape.begin(), images.shape.end())},
        {"layout", images.layout},
        {"dtype", images.is_float ? "float32" : "uint8"},
        {"values", base64(images.values)}};
    return ask_to_log("images", item, {{"images", content}});
  }
  bool take(const TrackedTable& table, const TrackedItem& item) {
    return ask_to_log(
        "table",
        item,
        {{"columns",
          TrackedValue::List(table.columns.begin(), table.columns.end())},
         {"rows", TrackedValue::List(table.rows.begin(), table.rows.end())}});
  }
  bool take(const TrackedHistogram& histogram, const TrackedItem& item) {
    const TrackedValues content = {
        {"edges", numbers(histogram.edges)},
        {"counts", numbers(histogram.counts)}};
    return ask_to_log("histogram", item, {{"histogram", content}});
  }
  bool take(const TrackedFigure& figure, const TrackedItem& item) {
    return ask_to_log("figure", item, {{"svg", figure.svg}});
  }
  bool take(const TrackedArtifact& artifact, const TrackedItem&) {
    return ask(
        "artifact",
        {{"path", artifact.path}, {"directory", artifact.directory}});
  }
  void finish() override {
    ask(kFinish, {});
    if (process_) process_->wait();
    process_.reset();
  }
  /// The id of the Python process, as int.
  [[nodiscard]] std::any tracker() override {
    return process_ ? std::any(static_cast<int>(process_->pid())) : std::any();
  }

 private:
  /// Whether the package supports the call. Once the process is gone, calls are
  /// ignored: its end has been reported.
  bool ask(std::string_view what, TrackedValues arguments) {
    if (!process_ || !process_->is_running()) return true;
    arguments.insert(arguments.begin(), {"do", what});
    const std::string line = python_json(arguments);
    const nlohmann::json answer = nlohmann::json::parse(
        what == kFinish ? process_->ask_last(line) : process_->ask(line),
        nullptr,
        false);
    if (!answer.is_object()) {
      throw Error(format(
          "[trackers] {} must answer with JSON, but did not", facts_.name));
    }
    if (const auto missing = answer.find("missing"); missing != answer.end())
      refuse_missing(text_of(*missing));
    if (const auto error = answer.find("error"); error != answer.end()) {
      throw Error(format(
          "[trackers] {} failed ({}): {}",
          facts_.name,
          what,
          printable_lines(text_of(*error))));
    }
    const auto ok = answer.find("ok");
    return ok == answer.end() || !ok->is_boolean() || ok->get<bool>();
  }
  bool ask_to_log(
      std::string_view what,
      const TrackedItem& item,
      TrackedValues arguments) {
    arguments.insert(arguments.begin(), {"name", item.name});
    arguments.push_back({"step", step_of(item.time)});
    arguments.push_back({"options", item.options(name())});
    return ask(what, std::move(arguments));
  }
  [[noreturn]] void refuse_missing(const std::string& package) const {
    throw ConfigError(format(
        "[trackers] {} needs the Python package {}, which {} lacks (pip "
        "install "
        "{}); install it, or name another interpreter with \"python\" in its "
        "init_kwargs or with ACCELERATE_PYTHON{}",
        facts_.name,
        package,
        options_.python,
        package,
        facts_.otherwise));
  }

  PackageFacts facts_;
  TrackedValues start_;
  TrackerProcessOptions options_;
  std::unique_ptr<TrackerProcess> process_;
};

}  // namespace

std::unique_ptr<GeneralTracker> make_python_tracker(
    const TrackerRequest& request,
    std::string_view package) {
  const PackageFacts& facts = facts_of(package);
  if (facts.requires_logging_directory && request.logging_dir.empty()) {
    throw ConfigError(format(
        "[trackers] {} writes files; set ProjectConfiguration::logging_dir or "
        "project_dir",
        package));
  }
  TrackerProcessOptions options{
      .environment = request.environment, .patience = request.patience};
  if (const auto python = request.environment.get("ACCELERATE_PYTHON"))
    options.python = *python;
  TrackedValues init_kwargs;
  for (const NamedValue& each : request.init_kwargs) {
    if (each.name != "python") {
      init_kwargs.push_back(each);
    } else if (each.value.text()) {
      options.python = *each.value.text();
    } else {
      throw ConfigError(format(
          "[trackers] {}'s \"python\" must be the path or name of an "
          "interpreter, but is {}",
          package,
          printable(each.value.str())));
    }
  }
  return std::make_unique<PythonTracker>(
      facts,
      TrackedValues{
          {"package", package},
          {"project", request.project_name},
          {"logging_dir", request.logging_dir.string()},
          {"init_kwargs", std::move(init_kwargs)}},
      std::move(options));
}

std::unique_ptr<GeneralTracker> make_comet_ml(const TrackerRequest& request) {
  return make_python_tracker(request, "comet_ml");
}

std::unique_ptr<GeneralTracker> make_aim(const TrackerRequest& request) {
  return make_python_tracker(request, "aim");
}

std::unique_ptr<GeneralTracker> make_clearml(const TrackerRequest& request) {
  return make_python_tracker(request, "clearml");
}

std::unique_ptr<GeneralTracker> make_swanlab(const TrackerRequest& request) {
  return make_python_tracker(request, "swanlab");
}

}  // namespace accelerate::detail
