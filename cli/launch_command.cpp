#include "cli/launch_command.h"

#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/text.h"
#include "cli/launch_plan.h"
#include "cli/rank_group.h"
#include "config/config_file.h"
#include "config/option_table.h"
#include "config/settings.h"

namespace accelerate::cli {

namespace {

using detail::concat;
using detail::OptionSpec;

struct Flags {
  std::map<std::string, std::string, std::less<>> values;  // option key -> text
  std::map<std::string, bool, std::less<>> switches;
  std::string config_file;
  bool is_dry_run = false;
};

// Accelerate spells its flags with _ and takes - as well.
std::string both_spellings(std::string_view flag) {
  std::string dashed(flag);
  for (std::size_t i = 2; i < dashed.size(); ++i) {
    if (dashed[i] == '_') dashed[i] = '-';
  }
  return dashed == flag ? dashed : concat(flag, ",", dashed);
}

void add_flags(CLI::App& launch, Flags& flags) {
  for (const OptionSpec& spec : detail::option_table()) {
    if (spec.flag.empty()) continue;
    const std::string key(spec.key);
    std::string help(spec.help);
    if (!spec.default_value.empty())
      help += concat(" [", spec.default_value, "]");
    if (spec.kind == detail::OptionKind::boolean) {
      launch.add_flag(both_spellings(spec.flag), flags.switches[key], help);
    } else {
      launch.add_option(both_spellings(spec.flag), flags.values[key], help)
          ->type_name(
              spec.kind == detail::OptionKind::choice ? std::string(spec.limits)
                                                      : "VALUE");
    }
  }
  launch
      .add_option(
          "--config_file,--config-file",
          flags.config_file,
          "YAML or JSON file of settings; else Accelerate's own, if there is "
          "one")
      ->type_name("FILE");
  launch.add_flag(
      "--dry_run,--dry-run",
      flags.is_dry_run,
      "print command, variables and where each setting came from, and start "
      "nothing");
}

[[noreturn]] void refuse_flag(const CLI::App& launch, const std::string& flag) {
  const std::string name = flag.substr(0, flag.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : launch.get_options()) {
    for (const std::string& long_name : option->get_lnames())
      known.push_back("--" + long_name);
  }
  const auto guess = detail::nearest(name, known);
  throw ConfigError(concat(
      "[launch] there is no flag \"",
      name,
      "\"",
      guess ? concat("; did you mean ", *guess, "?") : std::string(),
      " Flags of the program itself go behind its name; see accelerate-cpp "
      "launch --help"));
}

detail::Settings resolve_settings(
    const CLI::App& launch,
    const Flags& flags,
    const detail::Environment& environment) {
  std::vector<detail::Source> sources;
  detail::Source from_flags{detail::Origin::flag, {}};
  for (const OptionSpec& spec : detail::option_table()) {
    if (spec.flag.empty() || launch.count(std::string(spec.flag)) == 0)
      continue;
    const std::string key(spec.key);
    const bool is_switch = spec.kind == detail::OptionKind::boolean;
    from_flags.add(
        key,
        is_switch ? (flags.switches.at(key) ? "true" : "false")
                  : flags.values.at(key),
        concat("flag ", spec.flag));
  }
  sources.push_back(std::move(from_flags));
  sources.push_back(detail::source_from_environment(environment));

  std::optional<std::filesystem::path> path;
  if (!flags.config_file.empty()) {
    path = flags.config_file;
  } else if (auto usual = detail::default_config_path(environment);
             usual && std::filesystem::exists(*usual)) {
    path = std::move(usual);
  }
  if (path) {
    detail::ConfigFile file = detail::read_config_file(*path);
    if (!file.without_effect.empty()) {
      std::fprintf(
          stderr,
          "accelerate-cpp: warning: %s sets %s, which have no effect in this "
          "version\n",
          path->c_str(),
          detail::join(file.without_effect, ", ").c_str());
    }
    sources.push_back(std::move(file.source));
  }
  return detail::resolve(sources);
}

int launch_program(const CLI::App& launch, const Flags& flags) {
  std::vector<std::string> command = launch.remaining();
  if (!command.empty() && command.front() == "--")
    command.erase(command.begin());
  if (!command.empty() && command.front().starts_with("-"))
    refuse_flag(launch, command.front());
  if (command.empty()) {
    throw ConfigError(
        "[launch] no program was named; write accelerate-cpp launch [flags] "
        "PROGRAM [arguments]");
  }
  const detail::Environment environment = detail::Environment::current();
  const detail::Settings settings =
      resolve_settings(launch, flags, environment);
  const LaunchPlan plan = make_launch_plan(settings, environment, command);
  if (flags.is_dry_run) {
    std::fputs(describe(plan, settings).c_str(), stdout);
    return 0;
  }
  return run_ranks(plan);
}

}  // namespace

std::function<int()> add_launch_command(CLI::App& tool) {
  auto flags = std::make_shared<Flags>();
  CLI::App* launch = tool.add_subcommand(
      "launch", "start a program on one or several processes");
  launch->footer(
      "Then PROGRAM and its own arguments: accelerate-cpp launch [flags] "
      "PROGRAM [arguments]");
  launch->prefix_command();
  add_flags(*launch, *flags);
  return [launch, flags] { return launch_program(*launch, *flags); };
}

}  // namespace accelerate::cli
