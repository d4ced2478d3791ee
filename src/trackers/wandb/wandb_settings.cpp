#include "trackers/wandb/wandb_settings.h"

#include <random>
#include <string_view>
#include <variant>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "trackers/keyword_arguments.h"

namespace accelerate::detail {

namespace {

WandbMode wandb_mode(
    const KeywordArguments& arguments,
    const Environment& environment) {
  const auto disabled = environment.get("WANDB_DISABLED");
  if (disabled && parse_bool(*disabled).value_or(true))
    return WandbMode::disabled;
  auto mode = arguments.text("mode");
  if (!mode) mode = environment.get("WANDB_MODE");
  if (!mode || *mode == "offline" || *mode == "dryrun")
    return WandbMode::offline;
  if (*mode == "online" || *mode == "run" || *mode == "shared")
    return WandbMode::online;
  if (*mode == "disabled") return WandbMode::disabled;
  throw ConfigError(format(
      "[trackers] wandb: the mode must be offline, online or "
      "disabled, but is \"{}\"",
      printable(*mode)));
}

// Eight letters and digits, as W&B generates them.
std::string random_run_id() {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device device;
  std::uniform_int_distribution<std::size_t> place(0, kLetters.size() - 1);
  std::string run_id;
  for (int i = 0; i < 8; ++i) run_id += kLetters[place(device)];
  return run_id;
}

// Ids and projects are part of file names and URLs.
void require_wandb_name(std::string_view what, const std::string& name) {
  constexpr std::string_view kForbidden = "/\\#?%:";
  if (!name.empty() && name.size() <= 128 && trim(name) == name &&
      name.find_first_of(kForbidden) == std::string::npos &&
      printable(name) == name) {
    return;
  }
  throw ConfigError(format(
      "[trackers] wandb: the {} must have 1 to 128 characters, none of them "
      "one of {}, and no spaces around it, but is \"{}\"",
      what,
      kForbidden,
      printable(name)));
}

std::vector<std::string> wandb_tags(
    const KeywordArguments& arguments,
    const Environment& environment) {
  if (const auto tags = arguments.texts("tags")) return *tags;
  const auto variable = environment.get("WANDB_TAGS");
  return variable ? split(*variable, ',') : std::vector<std::string>{};
}

TrackedValues wandb_config(const KeywordArguments& arguments) {
  const TrackedValue* const config = arguments.find("config");
  if (!config) return {};
  if (!config->map()) {
    throw ConfigError(
        "[trackers] wandb's init_kwargs: \"config\" must be named values, but "
        "has no names");
  }
  return *config->map();
}

bool wandb_resume(const KeywordArguments& arguments) {
  const TrackedValue* const resume = arguments.find("resume");
  if (!resume) return false;
  const bool* const flag = std::get_if<bool>(&resume->content());
  return !flag || *flag;
}

KeywordArguments wandb_arguments(const TrackerRequest& request) {
  return {
      "wandb's init_kwargs",
      request.init_kwargs,
      {"project",
       "entity",
       "name",
       "id",
       "group",
       "job_type",
       "tags",
       "notes",
       "config",
       "dir",
       "mode",
       "resume"}};
}

}  // namespace

WandbSettings wandb_settings(const TrackerRequest& request) {
  const KeywordArguments arguments = wandb_arguments(request);
  const auto text = [&](std::string_view name, std::string_view variable) {
    if (auto argument = arguments.text(name)) return *argument;
    return request.environment.get(variable).value_or("");
  };
  WandbSettings settings;
  settings.mode = wandb_mode(arguments, request.environment);
  settings.project = arguments.text("project").value_or(request.project_name);
  if (settings.project.empty())
    settings.project =
        request.environment.get("WANDB_PROJECT").value_or("uncategorized");
  settings.entity = text("entity", "WANDB_ENTITY");
  settings.name = text("name", "WANDB_NAME");
  settings.group = text("group", "WANDB_RUN_GROUP");
  settings.job_type = text("job_type", "WANDB_JOB_TYPE");
  settings.notes = text("notes", "WANDB_NOTES");
  settings.directory = text("dir", "WANDB_DIR");
  settings.tags = wandb_tags(arguments, request.environment);
  settings.config = wandb_config(arguments);
  settings.resume = wandb_resume(arguments);
  settings.run_id = text("id", "WANDB_RUN_ID");
  if (settings.run_id.empty()) settings.run_id = random_run_id();
  if (settings.mode != WandbMode::offline) return settings;
  require_wandb_name("run id", settings.run_id);
  require_wandb_name("project", settings.project);
  return settings;
}

bool wandb_wants_online(const TrackerRequest& request) {
  // Arguments that only W&B's own package knows are not an error here.
  TrackedValues mode;
  for (const NamedValue& each : request.init_kwargs) {
    if (each.name == "mode") mode.push_back(each);
  }
  const KeywordArguments arguments("wandb's init_kwargs", mode, {"mode"});
  return wandb_mode(arguments, request.environment) == WandbMode::online;
}

}  // namespace accelerate::detail
