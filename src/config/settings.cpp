#include "config/settings.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

void Source::add(std::string_view key, std::string text, std::string where) {
  values.insert_or_assign(
      std::string(key), std::pair(std::move(text), std::move(where)));
}

const Resolved* Settings::find(std::string_view key) const {
  if (find_option(key) == nullptr) {
    throw InternalError(format("[config] no option is called \"{}\"", key));
  }
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

namespace {

template <class T>
std::optional<T> value_as(const Resolved* resolved) {
  if (resolved == nullptr) return std::nullopt;
  return std::get<T>(resolved->value);
}

}  // namespace

std::optional<std::int64_t> Settings::integer(std::string_view key) const {
  return value_as<std::int64_t>(find(key));
}

std::optional<double> Settings::number(std::string_view key) const {
  return value_as<double>(find(key));
}

std::optional<std::string> Settings::text(std::string_view key) const {
  return value_as<std::string>(find(key));
}

bool Settings::boolean(std::string_view key) const {
  return value_as<bool>(find(key)).value_or(false);
}

bool Settings::is_given(std::string_view key) const {
  const Resolved* const resolved = find(key);
  return resolved != nullptr && resolved->origin != Origin::default_value;
}

std::string Settings::explain() const {
  std::string out;
  for (const OptionSpec& spec : option_table()) {
    const auto found = values_.find(spec.key);
    if (found == values_.end()) continue;
    if (spec.use != OptionUse::acts && !is_given(spec.key)) continue;
    out += format(
        "{} = {}  ({})\n",
        spec.key,
        format_option(found->second.value),
        found->second.where);
  }
  return out;
}

Settings resolve(std::span<const Source> sources) {
  std::vector<const Source*> strongest_first;
  for (const Source& source : sources) strongest_first.push_back(&source);
  std::stable_sort(
      strongest_first.begin(),
      strongest_first.end(),
      [](const Source* a, const Source* b) { return a->origin > b->origin; });

  Settings settings;
  std::vector<std::string> complaints;
  for (const Source* source : strongest_first) {
    for (const auto& [key, entry] : source->values) {
      const auto& [text, where] = entry;
      const OptionSpec* const spec = find_option(key);
      if (spec == nullptr) {
        throw InternalError(format("[config] no option is called \"{}\"", key));
      }
      try {
        settings.values_.try_emplace(
            key,
            Resolved{parse_option(*spec, text), text, source->origin, where});
      } catch (const ConfigError& error) {
        complaints.push_back(format("{} ({})", error.what(), where));
      }
    }
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  for (const OptionSpec& spec : option_table()) {
    if (spec.default_value.empty()) continue;
    settings.values_.try_emplace(
        std::string(spec.key),
        Resolved{
            parse_option(spec, spec.default_value),
            std::string(spec.default_value),
            Origin::default_value,
            "default"});
  }
  return settings;
}

namespace {

// DeepSpeed writes "auto" for a number that the program sets.
bool is_left_open(const OptionSpec& spec, std::string_view text) {
  return text == "auto" &&
      (spec.kind == OptionKind::integer || spec.kind == OptionKind::number);
}

}  // namespace

Source source_from_environment(const Environment& environment) {
  Source source{Origin::environment, {}};
  for (const OptionSpec& spec : option_table()) {
    if (spec.variable.empty()) continue;
    if (auto text = environment.get(spec.variable)) {
      if (is_left_open(spec, *text)) continue;
      source.add(
          spec.key,
          *std::move(text),
          format("environment variable {}", spec.variable));
    }
  }
  return source;
}

Source source_from_handover(const Environment& environment) {
  Source source{Origin::launcher, {}};
  const auto text = environment.get(kHandoverVariable);
  if (!text) return source;
  const nlohmann::json object = nlohmann::json::parse(*text, nullptr, false);
  if (!object.is_object()) {
    throw ConfigError(format(
        "[config] {} is not a JSON object: \"{}\"; unset it, or start the "
        "program with accelerate-cpp launch",
        kHandoverVariable,
        *text));
  }
  const nlohmann::json origins =
      object.value("origins", nlohmann::json::object());
  std::vector<std::string> complaints;
  for (const auto& [key, value] : object.items()) {
    if (key == "origins") continue;
    if (find_option(key) == nullptr) {
      complaints.push_back(format(
          "[config] {} has \"{}\", which this library does not know; use a "
          "launcher and a program of the same version",
          kHandoverVariable,
          key));
      continue;
    }
    const std::string where =
        origins.is_object() ? origins.value(key, "launcher") : "launcher";
    source.add(
        key,
        value.is_string() ? value.get<std::string>() : value.dump(),
        where);
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  return source;
}

std::string to_handover(const Settings& settings) {
  nlohmann::json object = nlohmann::json::object();
  nlohmann::json origins = nlohmann::json::object();
  for (const auto& [key, resolved] : settings.all()) {
    if (resolved.origin == Origin::default_value) continue;
    object[key] = std::visit(
        [](const auto& value) { return nlohmann::json(value); },
        resolved.value);
    origins[key] = resolved.where;
  }
  if (!origins.empty()) object["origins"] = std::move(origins);
  return object.dump();
}

}  // namespace accelerate::detail
