#include "config/settings.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

void Source::add(std::string_view key, std::string text, std::string where) {
  values.insert_or_assign(
      std::string(key), std::pair(std::move(text), std::move(where)));
}

namespace {

const OptionSpec& option_called(std::string_view key) {
  const OptionSpec* const spec = find_option(key);
  if (spec != nullptr) return *spec;
  throw InternalError(format("[config] no option is called \"{}\"", key));
}

bool is_from_source(const Resolved& value) {
  return value.origin > Origin::settled;
}

bool asks_for_something(const OptionSpec& spec, const Resolved& value) {
  return !is_default(spec, value.value) &&
      !(value.origin == Origin::file &&
        is_written_by_default(spec, value.value));
}

// Sections of the file that an engine reads only if it is in use.
bool belongs_to_engine(const OptionSpec& spec) {
  return !spec.section.empty() && spec.section != "parallelism_config" &&
      spec.section != "mpirun_config";
}

template <class T>
std::optional<T> value_as(const Resolved* resolved) {
  if (resolved == nullptr) return std::nullopt;
  return std::get<T>(resolved->value);
}

}  // namespace

const Resolved* Settings::find(std::string_view key) const {
  static_cast<void>(option_called(key));
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> Settings::integer(std::string_view key) const {
  mark_read(key);
  return value_as<std::int64_t>(find(key));
}

std::optional<double> Settings::number(std::string_view key) const {
  mark_read(key);
  return value_as<double>(find(key));
}

std::optional<std::string> Settings::text(std::string_view key) const {
  mark_read(key);
  return value_as<std::string>(find(key));
}

bool Settings::boolean(std::string_view key) const {
  mark_read(key);
  return value_as<bool>(find(key)).value_or(false);
}

std::optional<std::string> Settings::as_written(std::string_view key) const {
  mark_read(key);
  const Resolved* const found = find(key);
  return found == nullptr ? std::nullopt : std::optional(found->text);
}

bool Settings::is_given(std::string_view key) const {
  const Resolved* const resolved = find(key);
  return resolved != nullptr && is_from_source(*resolved);
}

void Settings::mark_read(std::string_view key) const {
  reads_->mark_read(option_called(key));
}

bool Settings::was_read(std::string_view key) const {
  return reads_->was_read(option_called(key));
}

void Settings::mark_reported(std::string_view key) const {
  reads_->mark_reported(option_called(key));
}

bool Settings::was_reported(std::string_view key) const {
  const OptionSpec* const spec = find_option(key);
  return spec != nullptr && reads_->was_reported(*spec);
}

bool Settings::is_without_effect(const OptionSpec& spec, const Resolved& value)
    const {
  if (!is_from_source(value) || value.origin == Origin::code) return false;
  // OpenMP reads its variable itself.
  if (spec.variable == "OMP_NUM_THREADS") return false;
  switch (spec.use) {
    case OptionUse::acts:
      if (reads_->was_read(spec)) return false;
      break;
    case OptionUse::launches:
      // This project's launcher has already acted on what it passes on.
      if (value.origin != Origin::environment) return false;
      break;
    case OptionUse::carried:
    case OptionUse::python_only:
    case OptionUse::unused:
      break;
  }
  return asks_for_something(spec, value);
}

bool Settings::is_requested(std::string_view key) const {
  const auto value = values_.find(key);
  return value != values_.end() && is_from_source(value->second) &&
      asks_for_something(option_called(key), value->second);
}

std::vector<GivenSetting> Settings::unread() const {
  std::vector<GivenSetting> found;
  for (const OptionSpec& spec : option_table()) {
    const auto value = values_.find(spec.key);
    if (value == values_.end() || reads_->was_reported(spec)) continue;
    if (is_without_effect(spec, value->second))
      found.push_back({std::string(spec.key), value->second.where});
  }
  return found;
}

void Settings::put(
    std::string_view key,
    OptionValue value,
    Origin origin,
    std::string where) {
  const OptionKind kind = option_called(key).kind;
  std::string text = format_option(value);
  // Fields have enumerations where the launcher has words.
  if (kind == OptionKind::text || kind == OptionKind::choice) value = text;
  values_[std::string(key)] = {
      std::move(value), std::move(text), origin, std::move(where)};
}

void Settings::settle(
    std::string_view key,
    OptionValue value,
    std::string where) {
  if (!is_given(key))
    put(key, std::move(value), Origin::settled, std::move(where));
}

void Settings::overrule(
    std::string_view key,
    OptionValue value,
    std::string where) {
  put(key, std::move(value), Origin::code, std::move(where));
}

std::string Settings::explain(ExplainedRows rows) const {
  const bool is_program = rows == ExplainedRows::of_program;
  std::string out;
  for (const OptionSpec& spec : option_table()) {
    const auto found = values_.find(spec.key);
    if (found == values_.end()) continue;
    const Resolved& value = found->second;
    const bool acts = spec.use == OptionUse::acts ||
        (spec.use == OptionUse::launches && !is_program);
    const bool is_idle_default =
        belongs_to_engine(spec) && value.origin == Origin::default_value;
    if ((!acts || is_idle_default) && !is_from_source(value)) continue;
    const bool is_idle = is_program && is_without_effect(spec, value);
    out += format(
        "{} = {}  ({}{})\n",
        spec.key,
        format_option(value.value),
        value.where,
        is_idle ? "; without effect" : "");
  }
  return out;
}

namespace {

// "2:8": the fewest and the most processes.
std::optional<std::pair<std::string, std::string>> read_range(
    std::string_view key,
    const std::string& text) {
  const std::size_t colon = text.find(':');
  if (key != "num_processes" || colon == std::string::npos) return std::nullopt;
  const std::string fewest(trim(text.substr(0, colon)));
  const std::string most(trim(text.substr(colon + 1)));
  if (!parse_int(fewest) || !parse_int(most)) {
    throw ConfigError(format(
        "[config] num_processes must be a number, or the fewest and the most, "
        "such as 2:8, but is \"{}\"",
        text));
  }
  return std::pair(fewest, most);
}

// A number of processes from a stronger source replaces a weaker source's
// range.
void drop_outdated_range(std::map<std::string, Resolved, std::less<>>& values) {
  const auto fewest = values.find("min_processes");
  const auto most = values.find("num_processes");
  if (fewest != values.end() && most != values.end() &&
      most->second.origin > fewest->second.origin)
    values.erase(fewest);
}

void take(
    std::map<std::string, Resolved, std::less<>>& values,
    std::string_view key,
    const std::string& text,
    const Source& source,
    const std::string& where) {
  values.try_emplace(
      std::string(key),
      Resolved{
          parse_option(*find_option(key), text), text, source.origin, where});
}

}  // namespace

Settings resolve(std::span<const Source> sources) {
  std::vector<const Source*> strongest_first;
  for (const Source& source : sources) strongest_first.push_back(&source);
  std::ranges::stable_sort(
      strongest_first,
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
        if (const auto range = read_range(key, text)) {
          take(settings.values_, "min_processes", range->first, *source, where);
          take(settings.values_, key, range->second, *source, where);
          continue;
        }
        take(settings.values_, key, text, *source, where);
      } catch (const ConfigError& error) {
        complaints.push_back(format("{} ({})", error.what(), where));
      }
    }
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  drop_outdated_range(settings.values_);
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
        "[config] {} must be a JSON object, but is \"{}\"; unset it, or start "
        "the program with accelerate-cpp launch",
        kHandoverVariable,
        *text));
  }
  const nlohmann::json origins =
      object.value("origins", nlohmann::json::object());
  std::vector<std::string> complaints;
  for (const auto& [key, value] : object.items()) {
    if (key == "origins" || key == "reported") continue;
    if (find_option(key) == nullptr) {
      complaints.push_back(format(
          "[config] {} contains \"{}\", which this library does not know; use "
          "a launcher and a program of the same version",
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

std::string to_handover(
    const Settings& settings,
    const std::vector<std::string>& reported) {
  nlohmann::json object = nlohmann::json::object();
  nlohmann::json origins = nlohmann::json::object();
  for (const auto& [key, resolved] : settings.all()) {
    if (!is_from_source(resolved)) continue;
    object[key] = std::visit(
        [](const auto& value) { return nlohmann::json(value); },
        resolved.value);
    origins[key] = resolved.where;
  }
  if (!origins.empty()) object["origins"] = std::move(origins);
  if (!reported.empty()) object["reported"] = reported;
  return object.dump();
}

void mark_reported_by_launcher(
    const Environment& environment,
    const Settings& settings) {
  const auto text = environment.get(kHandoverVariable);
  if (!text) return;
  const nlohmann::json object = nlohmann::json::parse(*text, nullptr, false);
  if (!object.is_object() || !object.contains("reported")) return;
  for (const nlohmann::json& key : object["reported"]) {
    if (key.is_string() && find_option(key.get<std::string>()) != nullptr)
      settings.mark_reported(key.get<std::string>());
  }
}

namespace {

std::size_t row_of(const OptionSpec& spec) {
  return static_cast<std::size_t>(&spec - option_table().data());
}

}  // namespace

ReadRecord::ReadRecord()
    : marks_(new std::atomic<std::uint8_t>[option_table().size()]()) {}

void ReadRecord::set(const OptionSpec& spec, std::uint8_t mark) const {
  marks_[row_of(spec)].fetch_or(mark, std::memory_order_relaxed);
}

bool ReadRecord::has(const OptionSpec& spec, std::uint8_t mark) const {
  return (marks_[row_of(spec)].load(std::memory_order_relaxed) & mark) != 0;
}

}  // namespace accelerate::detail
