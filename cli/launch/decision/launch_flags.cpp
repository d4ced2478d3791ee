#include "cli/launch/decision/launch_flags.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "config/options/option_table.h"

namespace accelerate::cli {

namespace {

using detail::format;
using detail::OptionKind;
using detail::OptionSpec;

// Short forms that Accelerate has for these flags.
std::string short_form(std::string_view key) {
  if (key == "quiet") return ",-q";
  if (key == "module") return ",-m";
  if (key == "tee") return ",-t";
  return "";
}

std::string type_name(const OptionSpec& spec) {
  switch (spec.kind) {
    case OptionKind::choice:
      return std::string(spec.limits);
    case OptionKind::truth:
      return "true|false";
    case OptionKind::integer:
      return "N";
    case OptionKind::number:
      return "X";
    case OptionKind::boolean:
    case OptionKind::text:
      break;
  }
  return "TEXT";
}

bool is_choice_in_wrong_case(const OptionSpec& spec, const std::string& text) {
  if (spec.kind != OptionKind::choice) return false;
  bool is_choice = false;
  for (const std::string& word : detail::split(spec.limits, '|')) {
    if (word == text) return false;
    is_choice = is_choice || detail::to_lower(word) == detail::to_lower(text);
  }
  return is_choice;
}

}  // namespace

std::string both_spellings(std::string_view flag) {
  std::string dashed(flag);
  std::replace(dashed.begin() + 2, dashed.end(), '_', '-');
  return dashed == flag ? dashed : format("{},{}", flag, dashed);
}

LaunchFlags::LaunchFlags(CLI::App& command) : command_(command) {
  for (const OptionSpec& spec : detail::option_table()) {
    if (spec.flag.empty()) continue;
    const std::string key(spec.key);
    const std::string names = both_spellings(spec.flag) + short_form(key);
    std::string help(spec.help);
    if (!spec.default_value.empty())
      help += format(" [{}]", spec.default_value);
    CLI::Option* option = nullptr;
    if (spec.kind == OptionKind::boolean) {
      option = command.add_flag(names, switches_[key], help);
    } else {
      option = command.add_option(names, texts_[key], help)
                   ->type_name(type_name(spec))
                   ->take_last();
    }
    option->group(std::string(spec.group));
    options_[key] = option;
  }
  command
      .add_option(
          "--config_file,--config-file",
          config_file_,
          "YAML or JSON file of settings; else "
          "Accelerate's own, if there is one")
      ->type_name("FILE");
  command.add_flag(
      "--dry_run,--dry-run",
      is_dry_run_,
      "print command, variables and where each setting came "
      "from, and start nothing");
}

bool LaunchFlags::was_given(std::string_view key) const {
  const auto found = options_.find(key);
  return found != options_.end() && found->second->count() > 0;
}

void LaunchFlags::refuse(const std::string& flag) const {
  const std::string name = flag.substr(0, flag.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command_.get_options()) {
    for (const std::string& long_name : option->get_lnames())
      known.push_back("--" + long_name);
  }
  const auto guess = detail::nearest(name, known);
  throw ConfigError(format(
      "[launch] unknown flag \"{}\"{} Flags of the program itself go after "
      "its name; see accelerate-cpp launch --help",
      name,
      guess ? format("; did you mean {}?", *guess) : std::string(".")));
}

std::vector<std::string> LaunchFlags::program() const {
  std::vector<std::string> arguments = command_.remaining();
  if (!arguments.empty() && arguments.front() == "--")
    arguments.erase(arguments.begin());
  if (!arguments.empty() && arguments.front().starts_with("-"))
    refuse(arguments.front());
  if (arguments.empty()) {
    throw ConfigError(
        "[launch] the program is missing; write accelerate-cpp launch [flags] "
        "PROGRAM [arguments]");
  }
  return arguments;
}

std::vector<std::string> LaunchFlags::arguments_without(
    const std::vector<std::string>& keys) const {
  std::vector<std::string> arguments;
  if (!config_file_.empty()) {
    arguments.insert(arguments.end(), {"--config_file", config_file_});
  }
  for (const OptionSpec& spec : detail::option_table()) {
    const std::string key(spec.key);
    if (!was_given(key) || std::ranges::find(keys, key) != keys.end()) {
      continue;
    }
    arguments.emplace_back(spec.flag);
    if (spec.kind != OptionKind::boolean) arguments.push_back(texts_.at(key));
  }
  return arguments;
}

detail::Source LaunchFlags::source() const {
  detail::Source source{detail::Origin::flag, {}};
  std::vector<std::string> complaints;
  for (const OptionSpec& spec : detail::option_table()) {
    if (!was_given(spec.key)) continue;
    const std::string key(spec.key);
    const std::string where = format("flag {}", spec.flag);
    if (spec.kind == OptionKind::boolean) {
      source.add(key, switches_.at(key) ? "true" : "false", where);
      continue;
    }
    const std::string& text = texts_.at(key);
    // Files may use any case, but flags must match exactly, as in Accelerate.
    if (is_choice_in_wrong_case(spec, text)) {
      complaints.push_back(format(
          "[launch] {} is \"{}\", but must be one of {}",
          spec.flag,
          text,
          detail::join(detail::split(spec.limits, '|'), ", ")));
      continue;
    }
    source.add(key, text, where);
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
  return source;
}

}  // namespace accelerate::cli
