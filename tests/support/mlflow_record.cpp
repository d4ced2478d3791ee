#include "support/mlflow_record.h"

#include <sstream>
#include <string>

#include <yaml-cpp/yaml.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::testing {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// The texts of the files below a directory, by path.
json texts_below(const fs::path& directory) {
  json result = json::object();
  if (!fs::exists(directory)) return result;
  for (const auto& each : fs::recursive_directory_iterator(directory)) {
    if (each.is_regular_file()) {
      result[each.path().lexically_relative(directory).string()] =
          detail::read_file(each.path());
    }
  }
  return result;
}

json recorded_run(const fs::path& directory) {
  const YAML::Node meta = YAML::LoadFile(directory / "meta.yaml");
  json metrics = json::object();
  const json metric_files = texts_below(directory / "metrics");
  for (const auto& [name, text] : metric_files.items()) {
    std::istringstream lines(text.get<std::string>());
    for (std::string line; std::getline(lines, line);) {
      const auto words = detail::split(line, ' ');
      metrics[name].push_back({words.at(1), std::stoll(words.at(2))});
    }
  }
  json tags = json::object();
  const json tag_files = texts_below(directory / "tags");
  for (const auto& [name, text] : tag_files.items()) {
    if (!name.starts_with("mlflow.") || name == "mlflow.note.content")
      tags[name] = text;
  }
  const auto name = meta["run_name"].as<std::string>();
  return {
      {"status", meta["status"].as<int>()},
      {"lifecycle_stage", meta["lifecycle_stage"].as<std::string>()},
      {"run_name", name.starts_with("run-") ? json() : json(name)},
      {"params", texts_below(directory / "params")},
      {"metrics", metrics},
      {"tags", tags}};
}

}  // namespace

json recorded_mlflow_experiments(const fs::path& directory) {
  json result = json::array();
  for (const auto& experiment : fs::directory_iterator(directory)) {
    if (!fs::exists(experiment.path() / "meta.yaml")) continue;
    const YAML::Node meta = YAML::LoadFile(experiment.path() / "meta.yaml");
    if (meta["experiment_id"].as<std::string>() == "0") continue;
    json runs = json::array();
    for (const auto& run : fs::directory_iterator(experiment.path())) {
      if (fs::exists(run.path() / "meta.yaml"))
        runs.push_back(recorded_run(run.path()));
    }
    result.push_back(
        {{"name", meta["name"].as<std::string>()}, {"runs", runs}});
  }
  return result;
}

}  // namespace accelerate::testing
