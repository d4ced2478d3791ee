#include "train/ignored_options.h"

#include <iterator>
#include <utility>

#include <accelerate/error.h>

#include "base/text.h"
#include "engines/dynamo.h"

namespace accelerate::detail {

namespace {

void append(
    std::vector<IgnoredSetting>& all,
    std::vector<IgnoredSetting> more) {
  all.insert(
      all.end(),
      std::make_move_iterator(more.begin()),
      std::make_move_iterator(more.end()));
}

// Whether trackers have a directory of their own.
bool names_logging_directory(const AcceleratorOptions& options) {
  const ProjectConfiguration& project = options.project_configuration;
  const std::string& project_dir =
      project.project_dir.empty() ? options.project_dir : project.project_dir;
  return !project.logging_dir.empty() && project.logging_dir != project_dir;
}

}  // namespace

std::vector<IgnoredSetting> options_without_effect(
    const ReplicateOptions& options) {
  std::vector<IgnoredSetting> ignored;
  const auto note = [&](bool is_changed, const std::string& name) {
    if (is_changed) ignored.push_back({name, {}, "code"});
  };
  note(options.dim != 0, "replicate_options.dim");
  note(options.check_reduction, "replicate_options.check_reduction");
  return ignored;
}

std::vector<IgnoredSetting> options_without_effect(
    const AcceleratorOptions& options,
    const Settings& settings) {
  std::vector<IgnoredSetting> ignored =
      options_without_effect(options.parallel.replicate_options);
  const auto note = [&](bool is_changed,
                        const std::string& name,
                        const std::string& instead = {}) {
    if (is_changed) ignored.push_back({name, instead, "code"});
  };
  note(
      !options.gradient_accumulation.adjust_scheduler,
      "gradient_accumulation.adjust_scheduler");
  note(
      names_logging_directory(options),
      "project_configuration.logging_dir",
      "there are no trackers yet");
  if (options.profile) {
    // Checks the schedule.
    if (const auto& schedule = options.profile->schedule_option)
      (void)profiler_action(*schedule, 0);
    note(true, "profile", "there is no profiler yet");
  }
  append(
      ignored,
      dynamo_without_effect(
          options.dynamo ? &*options.dynamo : nullptr, settings));
  return ignored;
}

}  // namespace accelerate::detail
