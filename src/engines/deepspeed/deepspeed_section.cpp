#include "engines/deepspeed/deepspeed_section.h"

#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/json_text.h"
#include "base/text/text.h"

namespace accelerate::detail {

using nlohmann::json;

namespace {

// A longer list of parameters is shortened in messages.
constexpr std::size_t kMostListedBytes = 2000;

}  // namespace

DeepSpeedSectionReader::DeepSpeedSectionReader(
    const std::string& config,
    std::string name,
    std::map<std::string, double> automatic)
    : name_(std::move(name)), automatic_(std::move(automatic)) {
  const json all = parse_json(config).value;
  const auto found = all.is_object() ? all.find(name_) : all.end();
  if (!all.is_object() || found == all.end() || !found->is_object() ||
      !found->contains("type") || !(*found)["type"].is_string()) {
    throw ConfigError(format(
        "[optim] the DeepSpeed configuration has no section \"{}\" with a "
        "type; add one, or make the {} in code",
        name_,
        name_));
  }
  type_ = (*found)["type"].get<std::string>();
  params_ = found->value("params", json::object());
  for (const auto& [key, value] : params_.items()) unknown_.insert(key);
}

double DeepSpeedSectionReader::number(
    const std::string& key,
    double default_value) {
  const json* const value = take(key);
  if (value == nullptr) return default_value;
  if (value->is_number()) return value->get<double>();
  if (*value == "auto") {
    const auto filled = automatic_.find(key);
    if (filled != automatic_.end()) return filled->second;
  }
  refuse(key, "a number");
}

bool DeepSpeedSectionReader::truth(const std::string& key, bool default_value) {
  const json* const value = take(key);
  if (value == nullptr) return default_value;
  if (value->is_boolean()) return value->get<bool>();
  refuse(key, "true or false");
}

std::string DeepSpeedSectionReader::text(
    const std::string& key,
    const std::string& default_value) {
  const json* const value = take(key);
  if (value == nullptr) return default_value;
  if (value->is_string()) return value->get<std::string>();
  refuse(key, "a string");
}

std::tuple<double, double> DeepSpeedSectionReader::pair(
    const std::string& key,
    const std::tuple<double, double>& default_value) {
  const json* const value = take(key);
  if (value == nullptr) return default_value;
  if (value->is_array() && value->size() == 2 && (*value)[0].is_number() &&
      (*value)[1].is_number()) {
    return {(*value)[0].get<double>(), (*value)[1].get<double>()};
  }
  refuse(key, "two numbers");
}

void DeepSpeedSectionReader::require_all_known() const {
  if (unknown_.empty()) return;
  throw ConfigError(format(
      "[optim] {} {} of the DeepSpeed configuration has parameters that are "
      "not supported here: {}; remove them",
      name_,
      printable(type_),
      printable(
          join(
              std::vector<std::string>(unknown_.begin(), unknown_.end()), ", "),
          kMostListedBytes)));
}

void DeepSpeedSectionReader::refuse_type(std::string_view known) const {
  throw ConfigError(format(
      "[optim] {} {} of the DeepSpeed configuration is not "
      "supported; use one of {}",
      name_,
      printable(type_),
      known));
}

const json* DeepSpeedSectionReader::take(const std::string& key) {
  unknown_.erase(key);
  const auto found = params_.find(key);
  return found == params_.end() ? nullptr : &*found;
}

void DeepSpeedSectionReader::refuse(
    const std::string& key,
    std::string_view wanted) {
  throw ConfigError(format(
      "[optim] {}.params.{} of the DeepSpeed configuration is {}, not {}",
      name_,
      key,
      printable(params_[key].dump()),
      wanted));
}

}  // namespace accelerate::detail
