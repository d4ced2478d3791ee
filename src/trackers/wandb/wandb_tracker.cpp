#include <time.h>

#include <any>
#include <array>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "trackers/feed/feed_item.h"
#include "trackers/files/run_files.h"
#include "trackers/keyword_arguments.h"
#include "trackers/media/yaml_text.h"
#include "trackers/python/python_tracker.h"
#include "trackers/tracker_request.h"
#include "trackers/wandb/wandb_media.h"
#include "trackers/wandb/wandb_records.h"
#include "trackers/wandb/wandb_settings.h"
#include "trackers/wandb/wandb_values.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kWandbLogKwargs = "wandb's log_kwargs";

// "20240131_235959", local time.
std::string date_and_time(std::time_t seconds) {
  std::tm fields{};
  ::localtime_r(&seconds, &fields);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &fields);
  return text.data();
}

// Makes a run's directory, and points "latest-run" to it. A directory that
// another run with this id has taken within the same second is left to that
// run.
fs::path make_run_directory(const WandbSettings& settings, double begin) {
  const fs::path hidden = settings.directory / ".wandb";
  const fs::path parent =
      fs::is_directory(hidden) ? hidden : settings.directory / "wandb";
  fs::create_directories(parent);
  auto seconds = static_cast<std::time_t>(begin);
  fs::path directory;
  do {
    directory = parent /
        format("offline-run-{}-{}", date_and_time(seconds++), settings.run_id);
  } while (!fs::create_directory(directory));
  fs::create_directory(directory / "files");
  fs::create_directory(directory / "logs");
  const fs::path link = temporary_sibling(parent / "latest-run");
  fs::create_directory_symlink(directory.filename(), link);
  fs::rename(link, parent / "latest-run");
  return directory;
}

// A run with mode="offline", which `wandb sync` uploads.
class WandbTracker final : public GeneralTracker {
 public:
  WandbTracker(const TrackerRequest& request, WandbSettings settings)
      : settings_(std::move(settings)),
        begin_(request.begin),
        warn_(request.warn) {}

  [[nodiscard]] std::string name() const override { return "wandb"; }
  [[nodiscard]] bool main_process_only() const override { return false; }

  void start() override {
    if (settings_.resume && warn_) {
      warn_(format(
          "[trackers] wandb resumes runs only online; this is another part "
          "of run {}, for `wandb sync --append`",
          settings_.run_id));
    }
    try {
      directory_ = make_run_directory(settings_, begin_);
    } catch (const fs::filesystem_error& error) {
      throw Error(format(
          "[trackers] wandb: {} cannot be made: {}",
          error.path1(),
          error.code().message()));
    }
    records_ = std::make_unique<WandbRecords>(
        directory_ / format("run-{}.wandb", settings_.run_id),
        settings_,
        WandbEnvironment::current(),
        begin_);
    write_config();
  }
  void store_init_configuration(const TrackedValues& values) override {
    std::set<std::string_view> names;
    for (const NamedValue& each : values) names.insert(each.name);
    std::erase_if(settings_.config, [&](const NamedValue& old) {
      return names.contains(old.name);
    });
    settings_.config.insert(
        settings_.config.end(), values.begin(), values.end());
    records_->add_config(values);
    write_config();
  }
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override {
    const KeywordArguments arguments(kWandbLogKwargs, options, {"commit"});
    if (go_to(time)) add(wandb_value(values), time, arguments.flag("commit"));
  }
  bool log_item(const TrackedItem& item) override {
    return take_item(*this, item);
  }
  bool take(const TrackedImages& images, const TrackedItem& item) {
    const KeywordArguments arguments(
        kWandbLogKwargs, item.options(name()), {"commit", "caption"});
    const auto captions = arguments.texts("caption");
    return log_media(item, arguments.flag("commit"), [&](std::int64_t step) {
      return write_wandb_images(
          files(),
          item.name,
          step,
          images,
          captions.value_or(std::vector<std::string>{}));
    });
  }
  bool take(const TrackedTable& table, const TrackedItem& item) {
    return log_media(item, [&](std::int64_t step) {
      return write_wandb_table(files(), item.name, step, table);
    });
  }
  bool take(const TrackedHistogram& histogram, const TrackedItem& item) {
    return log_media(item, [&](std::int64_t) {
      return WandbMedia{wandb_histogram(histogram), {}};
    });
  }
  bool take(const TrackedFigure& figure, const TrackedItem& item) {
    return log_media(item, [&](std::int64_t step) {
      return write_wandb_html(files(), item.name, step, figure.svg);
    });
  }
  bool take(const TrackedArtifact& artifact, const TrackedItem&) {
    const auto& [path, directory] = artifact;
    const fs::path source(path);
    copy_into(source, files() / directory);
    const fs::path copy = files() / directory /
        (source.has_filename() ? source : source.parent_path()).filename();
    if (!fs::is_directory(copy)) {
      records_->add_file(copy.lexically_relative(files()).generic_string());
      return true;
    }
    for (const auto& entry : fs::recursive_directory_iterator(copy)) {
      if (!entry.is_regular_file()) continue;
      records_->add_file(
          entry.path().lexically_relative(files()).generic_string());
    }
    return true;
  }
  void flush() override {
    if (!new_summary_.empty()) {
      records_->add_summary(new_summary_);
      merge_wandb_values(summary_, new_summary_);
      new_summary_ = ordered_json::object();
      write_run_file(files() / "wandb-summary.json", wandb_json(summary_));
    }
    records_->flush();
  }
  void finish() override {
    write(history_.commit());
    flush();
    records_->add_exit(last_runtime_);
    records_->flush();
    records_.reset();
  }
  /// The directory of the run, as std::filesystem::path.
  [[nodiscard]] std::any tracker() override { return directory_; }

 private:
  using WriteMedia = std::function<WandbMedia(std::int64_t step)>;

  bool go_to(const LogTime& time) {
    if (history_.is_past(time.step)) {
      if (!has_warned_of_step_ && warn_) {
        warn_(format(
            "[trackers] wandb: values of step {} come after those of step {}; "
            "steps only grow, so these values and other late ones are not "
            "logged",
            *time.step,
            history_.step()));
      }
      has_warned_of_step_ = true;
      return false;
    }
    write(history_.advance(time.step));
    return true;
  }
  void add(
      const ordered_json& values,
      const LogTime& time,
      std::optional<bool> commit) {
    history_.add(values, time.seconds);
    if (commit.value_or(!time.step)) write(history_.commit());
  }
  bool log_media(const TrackedItem& item, const WriteMedia& write) {
    const KeywordArguments arguments(
        kWandbLogKwargs, item.options(name()), {"commit"});
    return log_media(item, arguments.flag("commit"), write);
  }
  bool log_media(
      const TrackedItem& item,
      std::optional<bool> commit,
      const WriteMedia& write) {
    if (!go_to(item.time)) return true;
    const WandbMedia media = write(history_.step());
    for (const std::string& file : media.files) records_->add_file(file);
    add({{item.name, media.value}}, item.time, commit);
    return true;
  }
  void write(const std::optional<WandbHistory::Row>& row) {
    if (!row) return;
    last_runtime_ = std::max(row->seconds - begin_, 0.0);
    records_->add_history(*row, last_runtime_);
    ordered_json values = row->values;
    values["_timestamp"] = row->seconds;
    values["_runtime"] = last_runtime_;
    values["_step"] = row->step;
    values["_wandb"] = {{"runtime", static_cast<std::int64_t>(last_runtime_)}};
    merge_wandb_values(new_summary_, values);
  }
  void write_config() const {
    TrackedValues config{{"_wandb", TrackedValues{{"value", TrackedValues{}}}}};
    for (const NamedValue& each : settings_.config)
      config.push_back({each.name, TrackedValues{{"value", each.value}}});
    write_run_file(files() / "config.yaml", yaml_text(config));
  }
  [[nodiscard]] fs::path files() const { return directory_ / "files"; }

  WandbSettings settings_;
  double begin_ = 0;
  std::function<void(const std::string&)> warn_;
  fs::path directory_;
  std::unique_ptr<WandbRecords> records_;
  WandbHistory history_;
  ordered_json summary_ = ordered_json::object();
  ordered_json new_summary_ = ordered_json::object();  // not yet a record
  double last_runtime_ = 0;
  bool has_warned_of_step_ = false;
};

// A run that WANDB_MODE or WANDB_DISABLED has turned off.
class DisabledWandbTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "wandb"; }
  [[nodiscard]] bool main_process_only() const override { return false; }
  bool log_item(const TrackedItem&) override { return true; }
};

}  // namespace

std::unique_ptr<GeneralTracker> make_wandb(const TrackerRequest& request) {
  // The connection to W&B's server is left to the package.
  if (wandb_wants_online(request)) return make_python_tracker(request, "wandb");
  WandbSettings settings = wandb_settings(request);
  if (settings.mode == WandbMode::disabled)
    return std::make_unique<DisabledWandbTracker>();
  return std::make_unique<WandbTracker>(request, std::move(settings));
}

}  // namespace accelerate::detail
