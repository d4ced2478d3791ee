#include "trackers/dvclive/dvclive_files.h"

#include <cmath>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include <yaml-cpp/yaml.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "format/journal/journal_json.h"
#include "trackers/media/yaml_text.h"

namespace accelerate::detail {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

/// The value as JSON; numbers that JSON lacks become text.
ordered_json json_of(const TrackedValue& value) {
  if (const auto* const flag = std::get_if<bool>(&value.content()))
    return *flag;
  if (const auto* const whole = std::get_if<std::int64_t>(&value.content()))
    return *whole;
  if (const auto* const real = std::get_if<double>(&value.content());
      real && std::isfinite(*real)) {
    return *real;
  }
  return value.text() ? *value.text() : value.str();
}

/// A cell as Python's csv writes it.
std::string cell(const std::string& text) {
  if (text.find_first_of("\t\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char letter : text) {
    result += letter;
    if (letter == '"') result += letter;
  }
  return result + "\"";
}

TrackedValue value_of(const YAML::Node& node) {
  if (node.IsMap()) {
    TrackedValues values;
    for (const auto& each : node)
      values.push_back({each.first.Scalar(), value_of(each.second)});
    return values;
  }
  if (node.IsSequence()) {
    TrackedValue::List list;
    for (const auto& each : node) list.push_back(value_of(each));
    return list;
  }
  if (!node.IsScalar()) return {};
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // in quotes
  if (text == "true" || text == "false") return text == "true";
  if (const auto whole = parse_int(text)) return *whole;
  if (text == ".inf" || text == "-.inf")
    return text == ".inf" ? INFINITY : -INFINITY;
  if (text == ".nan") return std::nan("");
  if (const auto real = parse_double(text)) return *real;
  return text;
}

}  // namespace

DvcliveFiles::DvcliveFiles(fs::path directory, bool resumes)
    : directory_(std::move(directory)) {
  std::error_code problem;
  fs::create_directories(directory_, problem);
  if (problem) {
    throw ConfigError(format(
        "[trackers] DVCLive cannot make the directory {}: {}",
        directory_.string(),
        problem.message()));
  }
  if (resumes) {
    read_earlier_run();
  } else {
    remove_earlier_run();
  }
}

void DvcliveFiles::remove_earlier_run() const {
  std::error_code ignored;
  for (const char* const name :
       {"metrics.json",
        "params.yaml",
        "report.html",
        "report.md",
        "dvc.yaml",
        "plots/metrics",
        "plots/images",
        "plots/sklearn",
        "plots/custom"}) {
    fs::remove_all(directory_ / name, ignored);
  }
}

void DvcliveFiles::read_earlier_run() {
  if (const fs::path path = directory_ / "metrics.json"; fs::exists(path)) {
    summary_ = parse_journal_json(read_file(path)).value_or(ordered_json());
    if (!summary_.is_object()) {
      throw ConfigError(format(
          "[trackers] {} must be a JSON object for DVCLive to resume from it, "
          "but is not; remove it, or start without resume",
          path.string()));
    }
    const auto step = summary_.find("step");
    if (step != summary_.end() && step->is_number_integer())
      resumed_step_ = step->get<std::int64_t>();
  }
  if (const fs::path path = directory_ / "params.yaml"; fs::exists(path)) {
    try {
      const TrackedValue params = value_of(YAML::Load(read_file(path)));
      if (params.map()) params_ = *params.map();
    } catch (const YAML::Exception& error) {
      throw ConfigError(format(
          "[trackers] {} must be YAML for DVCLive to resume from it, but is "
          "not ({}); remove it, or start without resume",
          path.string(),
          printable(error.what())));
    }
  }
}

void DvcliveFiles::write_params(const TrackedValues& values) {
  for (const NamedValue& each : values) {
    auto known = params_.begin();
    while (known != params_.end() && known->name != each.name) ++known;
    if (known == params_.end()) {
      params_.push_back(each);
    } else {
      known->value = each.value;
    }
  }
  write_run_file(
      directory_ / "params.yaml", yaml_text(params_, YamlDialect::ruamel));
}

void DvcliveFiles::add_metric(
    const std::string& name,
    const TrackedValue& value,
    std::int64_t step,
    const MetricOptions& options) {
  const fs::path path = path_below(directory_ / "plots/metrics", name + ".tsv");
  const std::vector<std::string> parts =
      split(fs::path(name).lexically_normal().string(), '/');
  if (options.plot) {
    std::string header, row;
    if (options.timestamp) {
      header = "timestamp\t";
      row = std::to_string(*options.timestamp) + "\t";
    }
    header += "step\t" + cell(parts.back()) + "\n";
    row += std::to_string(step) + "\t" + cell(value.str()) + "\n";
    const bool is_new = !rows_.has(path) && !fs::exists(path);
    rows_.append(path, is_new ? header + row : row);
  }
  ordered_json* place = &summary_;
  for (const std::string& part : parts) {
    // A value "loss/a" replaces an earlier value "loss".
    if (!place->is_object()) *place = ordered_json::object();
    place = &(*place)[part];
  }
  *place = json_of(value);
}

void DvcliveFiles::write_image(std::string_view name, std::string_view contents)
    const {
  write_run_file(path_below(directory_ / "plots/images", name), contents);
}

void DvcliveFiles::copy_artifact(
    const fs::path& source,
    std::string_view directory) const {
  const fs::path artifacts = directory_ / "artifacts";
  copy_into(
      source, directory.empty() ? artifacts : path_below(artifacts, directory));
}

void DvcliveFiles::write_dvc_yaml(const fs::path& path) const {
  const fs::path below =
      fs::absolute(directory_)
          .lexically_relative(fs::absolute(directory_of(path)));
  const auto place = [&](const char* name) {
    return TrackedValue((below / name).string());
  };
  TrackedValues entries;
  if (!params_.empty())
    entries.push_back({"params", TrackedValue::List{place("params.yaml")}});
  if (!summary_.empty())
    entries.push_back({"metrics", TrackedValue::List{place("metrics.json")}});
  TrackedValue::List plots;
  if (fs::exists(directory_ / "plots/metrics")) {
    plots.push_back(TrackedValues{
        {*place("plots/metrics").text(), TrackedValues{{"x", "step"}}}});
  }
  if (fs::exists(directory_ / "plots/images"))
    plots.push_back(place("plots/images"));
  if (!plots.empty()) entries.push_back({"plots", plots});
  write_run_file(path, yaml_text(entries, YamlDialect::ruamel));
}

void DvcliveFiles::flush() {
  const auto write_summary = [&] {
    if (summary_.empty()) return;
    replace_file(
        directory_ / "metrics.json",
        summary_.dump(4, ' ', true, ordered_json::error_handler_t::replace) +
            "\n");
  };
  attempt_all({[&] { rows_.flush(); }, write_summary});
}

}  // namespace accelerate::detail
