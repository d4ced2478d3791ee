#include "trackers/wandb/wandb_values.h"

#include <cmath>
#include <cstdint>
#include <variant>

#include "format/journal/journal_json.h"

namespace accelerate::detail {

namespace {

using nlohmann::ordered_json;

using VisitLeaf =
    std::function<void(const std::vector<std::string>&, const ordered_json&)>;

std::string quoted_json(const std::string& text) {
  return ordered_json(text).dump(
      -1, ' ', false, ordered_json::error_handler_t::replace);
}

void write_json(const ordered_json& value, std::string& text) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const auto number = value.get<double>();
    text += std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  } else if (value.is_structured()) {
    text += value.is_object() ? '{' : '[';
    bool is_first = true;
    for (auto each = value.begin(); each != value.end(); ++each) {
      if (!is_first) text += ',';
      is_first = false;
      if (value.is_object()) text += quoted_json(each.key()) + ":";
      write_json(*each, text);
    }
    text += value.is_object() ? '}' : ']';
  } else if (value.is_string()) {
    text += quoted_json(value.get_ref<const std::string&>());
  } else {
    text += value.dump();
  }
}

void visit_below(
    const ordered_json& values,
    std::vector<std::string>& names,
    const VisitLeaf& visit) {
  for (const auto& [name, value] : values.items()) {
    names.push_back(name);
    if (value.is_object() && !value.empty()) {
      visit_below(value, names, visit);
    } else {
      visit(names, value);
    }
    names.pop_back();
  }
}

}  // namespace

ordered_json wandb_value(const TrackedValue& value) {
  struct Convert {
    ordered_json operator()(std::monostate) const { return nullptr; }
    ordered_json operator()(bool flag) const { return flag; }
    ordered_json operator()(std::int64_t whole) const { return whole; }
    ordered_json operator()(double real) const { return real; }
    ordered_json operator()(const std::string& text) const { return text; }
    ordered_json operator()(const TrackedValue::List& list) const {
      ordered_json result = ordered_json::array();
      for (const TrackedValue& each : list) result.push_back(wandb_value(each));
      return result;
    }
    ordered_json operator()(const TrackedValues& values) const {
      ordered_json result = ordered_json::object();
      JsonMembers members;
      for (const NamedValue& each : values)
        members.of(result, each.name) = wandb_value(each.value);
      return result;
    }
  };
  return std::visit(Convert{}, value.content());
}

std::string wandb_json(const ordered_json& value) {
  std::string text;
  write_json(value, text);
  return text;
}

void merge_wandb_values(ordered_json& target, const ordered_json& values) {
  // For a few values, making an index takes longer than searching.
  constexpr std::size_t kFew = 8;
  const bool is_few = values.size() < kFew;
  JsonMembers members;
  for (const auto& [name, value] : values.items()) {
    ordered_json& old = is_few ? target[name] : members.of(target, name);
    // An object with a type, such as an image, is a single value.
    if (old.is_object() && value.is_object() && !value.contains("_type")) {
      merge_wandb_values(old, value);
    } else {
      old = value;
    }
  }
}

void visit_wandb_leaves(const ordered_json& values, const VisitLeaf& visit) {
  std::vector<std::string> names;
  visit_below(values, names, visit);
}

}  // namespace accelerate::detail
