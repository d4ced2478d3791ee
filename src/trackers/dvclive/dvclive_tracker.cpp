#include <any>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/journal/journal_entry.h"
#include "trackers/dvclive/dvclive_files.h"
#include "trackers/feed/feed_item.h"
#include "trackers/files/run_files.h"
#include "trackers/keyword_arguments.h"
#include "trackers/media/pixels.h"
#include "trackers/tracker_request.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

namespace {

struct DvcliveOptions {
  fs::path directory;
  bool resumes = false;
  /// Where to write a dvc.yaml; empty: not written.
  fs::path dvc_yaml;
};

/// Writes DVCLive's files. Everything that needs DVC itself (reports,
/// experiments in git, its cache) is left to `dvc` and the Python package.
class DvcliveTracker final : public GeneralTracker {
 public:
  DvcliveTracker(
      DvcliveOptions options,
      std::function<void(const std::string&)> warn)
      : options_(std::move(options)), warn_(std::move(warn)) {}

  [[nodiscard]] std::string name() const override { return "dvclive"; }

  void start() override {
    files_ =
        std::make_unique<DvcliveFiles>(options_.directory, options_.resumes);
    // DVCLive itself repeats step 0 of a run that ended there.
    last_step_ = files_->resumed_step();
    const std::int64_t last = last_step_.value_or(0);
    next_step_ = last == 0 ? 0 : step_after(last);
  }

  void store_init_configuration(const TrackedValues& values) override {
    files_->write_params(values);
  }

  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override {
    const KeywordArguments arguments(
        "dvclive's log_kwargs", options, {"timestamp", "plot"});
    DvcliveFiles::MetricOptions metric{
        .timestamp = std::nullopt,
        .plot = arguments.flag("plot").value_or(true)};
    if (arguments.flag("timestamp").value_or(false))
      metric.timestamp = static_cast<std::int64_t>(time.seconds * 1000);
    const std::int64_t step = time.step.value_or(next_step_);
    for (const NamedValue& each : values) {
      if (each.value.number() || each.value.text()) {
        files_->add_metric(each.name, each.value, step, metric);
      } else {
        warn_once(each.name);
      }
    }
    files_->set_step(step);
    last_step_ = step;
    next_step_ = step_after(step);
  }
  bool log_item(const TrackedItem& item) override {
    return take_item(*this, item);
  }
  bool take(const TrackedImages& images, const TrackedItem& item) {
    refuse_options(item);
    const std::string& name = item.name;
    const std::vector<Pixels> separate = separate_images(images);
    const std::string step =
        std::to_string(item.time.step.value_or(next_step_));
    // DVC shows a directory of images named by number as a slider.
    for (std::size_t i = 0; i < separate.size(); ++i) {
      const std::string directory =
          separate.size() == 1 ? name : name + "/" + std::to_string(i);
      const bool is_file = separate.size() == 1 && name.ends_with(".png");
      files_->write_image(
          is_file ? name : directory + "/" + step + ".png",
          png_of(separate[i]));
    }
    return true;
  }
  bool take(const TrackedFigure& figure, const TrackedItem& item) {
    refuse_options(item);
    const std::string step =
        std::to_string(item.time.step.value_or(next_step_));
    files_->write_image(
        item.name.ends_with(".svg") ? item.name
                                    : item.name + "/" + step + ".svg",
        figure.svg);
    return true;
  }
  bool take(const TrackedArtifact& artifact, const TrackedItem&) {
    files_->copy_artifact(artifact.path, artifact.directory);
    return true;
  }

  void flush() override { files_->flush(); }

  void finish() override {
    files_->set_step(last_step_.value_or(next_step_));
    const auto files = std::move(files_);
    const auto write_dvc_yaml = [&] {
      if (!options_.dvc_yaml.empty()) files->write_dvc_yaml(options_.dvc_yaml);
    };
    attempt_all({[&] { files->flush(); }, write_dvc_yaml});
  }

  /// The directory of the files, as std::filesystem::path.
  [[nodiscard]] std::any tracker() override { return options_.directory; }

 private:
  void refuse_options(const TrackedItem& item) const {
    KeywordArguments("dvclive's log_kwargs", item.options(name()), {});
  }
  void warn_once(const std::string& name) {
    if (!warn_ || !not_logged_.insert(name).second) return;
    warn_(format(
        "[trackers] values for DVCLive must be numbers or strings, unlike "
        "\"{}\", which is not logged",
        printable(name)));
  }

  DvcliveOptions options_;
  std::function<void(const std::string&)> warn_;
  std::unique_ptr<DvcliveFiles> files_;
  std::int64_t next_step_ = 0;
  std::optional<std::int64_t> last_step_;
  std::set<std::string> not_logged_;
};

/// Warns about arguments that only the Python package can honour.
void warn_of_what_needs_dvc(
    const KeywordArguments& arguments,
    const std::function<void(const std::string&)>& warn) {
  std::vector<std::string> needs;
  for (const char* const name :
       {"report",
        "save_dvc_exp",
        "cache_images",
        "exp_name",
        "exp_message",
        "monitor_system"}) {
    const TrackedValue* const value = arguments.find(name);
    if (value && *value != TrackedValue(false)) needs.emplace_back(name);
  }
  if (needs.empty() || !warn) return;
  warn(format(
      "[trackers] dvclive writes files without Python or git, so {} of its "
      "init_kwargs has no effect; run \"dvc exp save\" afterwards to keep an "
      "experiment",
      join(needs, ", ")));
}

}  // namespace

std::unique_ptr<GeneralTracker> make_dvclive(const TrackerRequest& request) {
  const KeywordArguments arguments(
      "dvclive's init_kwargs",
      request.init_kwargs,
      {"dir",
       "resume",
       "report",
       "save_dvc_exp",
       "dvcyaml",
       "cache_images",
       "exp_name",
       "exp_message",
       "monitor_system"});
  warn_of_what_needs_dvc(arguments, request.warn);
  DvcliveOptions options;
  options.directory = arguments.text("dir").value_or("dvclive");
  const std::string resume =
      request.environment.get("DVCLIVE_RESUME").value_or("");
  options.resumes = arguments.flag("resume").value_or(false) ||
      parse_bool(resume).value_or(false);
  if (const TrackedValue* const path = arguments.find("dvcyaml");
      path && *path != TrackedValue(false)) {
    options.dvc_yaml = *arguments.text("dvcyaml");
    if (options.dvc_yaml.filename() != "dvc.yaml") {
      throw ConfigError(format(
          "[trackers] dvclive's dvcyaml must be the path of a file called "
          "dvc.yaml, but is \"{}\"",
          options.dvc_yaml.string()));
    }
    if (fs::exists(options.dvc_yaml)) {
      throw ConfigError(format(
          "[trackers] dvclive's dvcyaml {} already exists and is not changed; "
          "add the files of {} to it and leave out dvcyaml",
          options.dvc_yaml.string(),
          options.directory.string()));
    }
  }
  return std::make_unique<DvcliveTracker>(std::move(options), request.warn);
}

}  // namespace accelerate::detail
