#include <algorithm>
#include <any>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "trackers/feed/feed_item.h"
#include "trackers/keyword_arguments.h"
#include "trackers/media/pixels.h"
#include "trackers/media/yaml_text.h"
#include "trackers/tensorboard/event_file.h"
#include "trackers/tensorboard/summary.h"
#include "trackers/tracker_request.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

constexpr const char* kTensorBoardLogKwargs = "tensorboard's log_kwargs";

LogTime with_walltime(LogTime time, const KeywordArguments& arguments) {
  time.seconds = arguments.number("walltime").value_or(time.seconds);
  return time;
}

// Writes what torch.utils.tensorboard's SummaryWriter writes.
class TensorBoardTracker final : public GeneralTracker {
 public:
  TensorBoardTracker(const TrackerRequest& request, EventFileOptions options)
      : directory_(request.logging_dir / request.project_name),
        options_(std::move(options)),
        warn_(request.warn) {}

  [[nodiscard]] std::string name() const override { return "tensorboard"; }
  [[nodiscard]] bool requires_logging_directory() const override {
    return true;
  }

  void start() override {
    main_ = std::make_unique<EventFile>(directory_, options_);
    options_.purge_step.reset();
  }

  void store_init_configuration(const TrackedValues& values) override {
    const auto summaries = hparams_summaries(values, options_.begin);
    const fs::path session = directory_ / TrackedValue(options_.begin).str();
    EventFile file(session, options_);
    for (const std::string& summary : summaries)
      file.add(summary, options_.begin, std::nullopt);
    file.flush();
    replace_file(session / "hparams.yml", yaml_text(values));
  }
  void log(
      const TrackedValues& values,
      const LogTime& log_time,
      const TrackedValues& options) override {
    const KeywordArguments arguments(
        kTensorBoardLogKwargs,
        options,
        {"walltime", "new_style", "double_precision"});
    const LogTime time = with_walltime(log_time, arguments);
    ScalarSummary summary = &scalar_summary;
    if (arguments.flag("new_style").value_or(false)) {
      summary = arguments.flag("double_precision").value_or(false)
          ? ScalarSummary([](std::string_view tag, double value) {
              return tensor_scalar_summary(tag, value, true);
            })
          : ScalarSummary([](std::string_view tag, double value) {
              return tensor_scalar_summary(tag, value, false);
            });
    }
    for (const NamedValue& each : values) {
      if (const auto number = each.value.number()) {
        main_->add(summary(each.name, *number), time.seconds, time.step);
      } else if (const std::string* const text = each.value.text()) {
        main_->add(text_summary(each.name, *text), time.seconds, time.step);
      } else if (each.value.map()) {
        log_parts(each, time, summary);
      } else {
        warn_once(each.name);
      }
    }
  }
  bool log_item(const TrackedItem& item) override {
    return take_item(*this, item);
  }
  bool take(const TrackedImages& images, const TrackedItem& item) {
    const KeywordArguments arguments(
        kTensorBoardLogKwargs,
        item.options(name()),
        {"walltime", "dataformats"});
    std::vector<Pixels> separate;
    if (const auto layout = arguments.text("dataformats")) {
      TrackedImages relabelled = images;
      relabelled.layout = *layout;
      separate = separate_images(relabelled);
    } else {
      separate = separate_images(images);
    }
    main_->add(
        image_summary(item.name, in_colour(image_grid(separate))),
        with_walltime(item.time, arguments).seconds,
        item.time.step);
    return true;
  }
  bool take(const TrackedTable& table, const TrackedItem& item) {
    return add_with_walltime(
        item, text_summary(item.name, markdown_table(table)));
  }
  bool take(const TrackedHistogram& histogram, const TrackedItem& item) {
    return add_with_walltime(item, histogram_summary(item.name, histogram));
  }

  void flush() override {
    main_->flush();
    for (const auto& [directory, file] : parts_) file->flush();
  }

  void finish() override {
    flush();
    parts_.clear();
    main_.reset();
  }

  /// The directory of the run, as std::filesystem::path.
  [[nodiscard]] std::any tracker() override { return directory_; }

 private:
  using ScalarSummary = std::string (*)(std::string_view tag, double value);

  bool add_with_walltime(const TrackedItem& item, const std::string& summary) {
    const KeywordArguments arguments(
        kTensorBoardLogKwargs, item.options(name()), {"walltime"});
    main_->add(
        summary, with_walltime(item.time, arguments).seconds, item.time.step);
    return true;
  }
  EventFile& part(const std::string& name, const std::string& key) {
    std::string directory = name;
    std::ranges::replace(directory, '/', '_');
    std::unique_ptr<EventFile>& file = parts_[directory + "_" + key];
    if (!file) {
      file = std::make_unique<EventFile>(
          directory_ / (directory + "_" + key), options_);
    }
    return *file;
  }
  void log_parts(
      const NamedValue& entry,
      const LogTime& time,
      ScalarSummary summary) {
    for (const NamedValue& each : *entry.value.map()) {
      if (const auto number = each.value.number()) {
        part(entry.name, each.name)
            .add(summary(entry.name, *number), time.seconds, time.step);
      } else {
        warn_once(entry.name + "/" + each.name);
      }
    }
  }
  void warn_once(const std::string& name) {
    if (!warn_ || !not_logged_.insert(name).second) return;
    warn_(format(
        "[trackers] values for TensorBoard must be numbers, strings or named "
        "numbers, unlike \"{}\", which is not logged",
        printable(name)));
  }

  fs::path directory_;
  EventFileOptions options_;
  std::function<void(const std::string&)> warn_;
  std::unique_ptr<EventFile> main_;
  // Values that are dictionaries have one file per entry.
  std::map<fs::path, std::unique_ptr<EventFile>> parts_;
  std::set<std::string> not_logged_;
};

}  // namespace

std::unique_ptr<GeneralTracker> make_tensorboard(
    const TrackerRequest& request) {
  // Files are flushed with every batch and the directory is given, so three of
  // these have no effect.
  const KeywordArguments arguments(
      "tensorboard's init_kwargs",
      request.init_kwargs,
      {"comment", "purge_step", "max_queue", "flush_secs", "filename_suffix"});
  if (request.logging_dir.empty()) {
    throw ConfigError(
        "[trackers] TensorBoard writes files; set "
        "ProjectConfiguration::logging_dir or project_dir");
  }
  EventFileOptions options{
      .begin = request.begin,
      .name_suffix = arguments.text("filename_suffix").value_or("")};
  if (const auto step = arguments.number("purge_step"))
    options.purge_step = static_cast<std::int64_t>(*step);
  return std::make_unique<TensorBoardTracker>(request, std::move(options));
}

}  // namespace accelerate::detail
