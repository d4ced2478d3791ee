#include "trackers/keyword_arguments.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

KeywordArguments::KeywordArguments(
    std::string subject,
    const TrackedValues& values,
    std::initializer_list<std::string_view> known)
    : subject_(std::move(subject)), values_(values) {
  for (const NamedValue& each : values_) {
    if (std::ranges::find(known, each.name) != known.end()) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    throw ConfigError(format(
        "[trackers] {} have \"{}\"; there are {}",
        subject_,
        printable(each.name),
        names.empty() ? "none" : join(names, ", ")));
  }
}

const TrackedValue* KeywordArguments::find(std::string_view name) const {
  for (const NamedValue& each : values_) {
    if (each.name == name && !each.value.is_none()) return &each.value;
  }
  return nullptr;
}

std::optional<std::string> KeywordArguments::text(std::string_view name) const {
  const TrackedValue* const value = find(name);
  if (!value) return std::nullopt;
  if (!value->text()) refuse(name, *value, "a string");
  return *value->text();
}

std::optional<double> KeywordArguments::number(std::string_view name) const {
  const TrackedValue* const value = find(name);
  if (!value) return std::nullopt;
  if (!value->number()) refuse(name, *value, "a number");
  return value->number();
}

std::optional<bool> KeywordArguments::flag(std::string_view name) const {
  const TrackedValue* const value = find(name);
  if (!value) return std::nullopt;
  const bool* const flag = std::get_if<bool>(&value->content());
  if (!flag) refuse(name, *value, "true or false");
  return *flag;
}

std::optional<std::vector<std::string>> KeywordArguments::texts(
    std::string_view name) const {
  const TrackedValue* const value = find(name);
  if (!value) return std::nullopt;
  if (value->text()) return std::vector<std::string>{*value->text()};
  const auto* const list = std::get_if<TrackedValue::List>(&value->content());
  if (!list) refuse(name, *value, "a list of strings");
  std::vector<std::string> result;
  for (const TrackedValue& each : *list) {
    if (!each.text()) refuse(name, *value, "a list of strings");
    result.push_back(*each.text());
  }
  return result;
}

void KeywordArguments::refuse(
    std::string_view name,
    const TrackedValue& value,
    std::string_view wanted) const {
  throw ConfigError(format(
      "[trackers] {}: \"{}\" must be {}, but is {}",
      subject_,
      name,
      wanted,
      printable(value.str())));
}

}  // namespace accelerate::detail
