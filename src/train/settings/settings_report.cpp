#include "train/settings/settings_report.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text/text.h"
#include "train/session/session.h"

namespace accelerate::detail {

namespace {

// The settings of a window that have no effect while it has one micro-step. The
// program may still change the window before its first step.
std::vector<IgnoredSetting> accumulation_without_effect(
    const Session& session) {
  if (session.clock.window() > 1) return {};
  std::vector<IgnoredSetting> ignored;
  const auto note = [note = IgnoredInCode(ignored)](
                        bool is_changed, const std::string& field) {
    note(
        is_changed,
        "gradient_accumulation." + field,
        "gradient_accumulation_steps is 1");
  };
  const GradientAccumulationOptions& options = session.options.accumulation;
  note(!options.sync_with_dataloader, "sync_with_dataloader");
  note(options.sync_each_batch, "sync_each_batch");
  note(options.divide_by_full_window, "divide_by_full_window");
  return ignored;
}

const std::string& key_of(const IgnoredSetting& setting) {
  return setting.key.empty() ? setting.name : setting.key;
}

bool is_from_launcher(const IgnoredSetting& setting) {
  return !setting.origin.empty() && setting.origin != "code";
}

std::string describe(const IgnoredSetting& setting) {
  std::vector<std::string> remarks;
  if (!setting.origin.empty()) remarks.push_back(setting.origin);
  if (!setting.instead.empty()) remarks.push_back(setting.instead);
  return remarks.empty() ? setting.name
                         : format("{} ({})", setting.name, join(remarks, "; "));
}

}  // namespace

bool is_named(
    const std::vector<IgnoredSetting>& ignored,
    const GivenSetting& given) {
  return std::ranges::any_of(ignored, [&](const IgnoredSetting& setting) {
    return key_of(setting) == given.key && setting.origin == given.where;
  });
}

void note_ignored_settings(
    Session& session,
    const std::vector<IgnoredSetting>& settings) {
  session.step.is_direct = false;
  std::vector<IgnoredSetting>& ignored = session.layout.report.ignored;
  for (const IgnoredSetting& setting : settings) {
    const bool is_known =
        std::ranges::any_of(ignored, [&](const IgnoredSetting& other) {
          return other.name == setting.name && other.origin == setting.origin;
        });
    if (!is_known) ignored.push_back(setting);
  }
}

void report_settings_without_effect(Session& session) {
  SettingsReport& report = session.layout.report;
  if (report.is_made && report.num_reported == report.ignored.size()) return;
  if (!report.is_made)
    note_ignored_settings(session, accumulation_without_effect(session));
  std::vector<std::string> listed;
  for (; report.num_reported < report.ignored.size(); ++report.num_reported) {
    const IgnoredSetting& setting = report.ignored[report.num_reported];
    if (setting.belongs_to_schedule && report.has_engine_schedule) continue;
    if (is_from_launcher(setting) &&
        session.layout.settings.was_reported(key_of(setting)))
      continue;
    listed.push_back(describe(setting));
  }
  if (!std::exchange(report.is_made, true)) {
    for (const GivenSetting& given : session.layout.settings.unread()) {
      if (!is_named(report.ignored, given))
        listed.push_back(format("{} ({})", given.key, given.where));
    }
  }
  if (listed.empty()) return;
  session.world.logger().log_once_per_world(
      LogLevel::warning,
      "config",
      format(
          "settings that have no effect in this program: {}",
          join(listed, ", ")));
}

}  // namespace accelerate::detail
