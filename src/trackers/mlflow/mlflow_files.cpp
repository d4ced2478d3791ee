#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include <accelerate/error.h>
#include <accelerate/tracker.h>

#include "base/files/files.h"
#include "base/text/encoding.h"
#include "base/text/text.h"
#include "trackers/files/run_files.h"
#include "trackers/media/yaml_text.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kRunning = 1;
constexpr std::int64_t kFinished = 3;

/// A meta.yaml whose entries are inspected; nothing if there is none.
std::optional<YAML::Node> read_meta(const fs::path& directory) {
  const fs::path path = directory / "meta.yaml";
  if (!fs::exists(path)) return std::nullopt;
  try {
    YAML::Node node = YAML::Load(read_file(path));
    if (node.IsMap()) return node;
  } catch (const YAML::Exception&) {
  }
  throw Error(format(
      "[trackers] {} is not a description of an MLflow run or experiment; "
      "restore or remove it",
      path.string()));
}

std::string entry(const YAML::Node& meta, const char* name) {
  const YAML::Node value = meta[name];
  return value && value.IsScalar() ? value.Scalar() : "";
}

std::int64_t whole_entry(const YAML::Node& meta, const char* name) {
  return parse_int(entry(meta, name)).value_or(0);
}

/// An 18-digit number, as MLflow names experiments.
std::string new_experiment_id() {
  std::random_device random;
  std::uniform_int_distribution<std::int64_t> digits(
      100'000'000'000'000'000, 999'999'999'999'999'999);
  return std::to_string(digits(random));
}

/// The contents of a run's meta.yaml.
struct RunMeta {
  std::string artifact_uri, experiment_id, id, name, user;
  std::int64_t start_time = 0;
  std::int64_t end_time = 0;  // 0: still running
  std::int64_t status = kRunning;

  void write(const fs::path& directory) const {
    const TrackedValue none;
    replace_file(
        directory / "meta.yaml",
        yaml_text(
            {{"artifact_uri", artifact_uri},
             {"deleted_time", none},
             {"end_time", end_time == 0 ? none : TrackedValue(end_time)},
             {"entry_point_name", ""},
             {"experiment_id", experiment_id},
             {"lifecycle_stage", "active"},
             {"run_id", id},
             {"run_name", name},
             {"run_uuid", id},
             {"source_name", ""},
             {"source_type", 4},  // local
             {"source_version", ""},
             {"start_time", start_time},
             {"status", status},
             {"tags", TrackedValue::List{}},
             {"user_id", user}}));
  }
};

/// MLflow's directories: EXPERIMENT/RUN/{metrics,params,tags,artifacts}, with
/// one file per metric, parameter and tag.
class MlflowFiles final : public MlflowStore {
 public:
  explicit MlflowFiles(fs::path root) : root_(std::move(root)) {
    const bool is_new = !fs::exists(root_);
    std::error_code problem;
    fs::create_directories(root_ / ".trash", problem);
    if (problem) {
      throw ConfigError(format(
          "[trackers] MLflow's directory {} cannot be made: {}; set "
          "MLFLOW_TRACKING_URI",
          root_.string(),
          problem.message()));
    }
    // MLflow assumes that the default experiment exists.
    if (is_new) create_experiment("0", MlflowExperiment{"Default", "", {}});
  }

  void create_run(const MlflowExperiment& experiment, const MlflowNewRun& run)
      override {
    const fs::path directory = experiment_directory(experiment);
    const auto experiment_meta = read_meta(directory);
    meta_ = RunMeta{
        .artifact_uri = "",
        .experiment_id = entry(*experiment_meta, "experiment_id"),
        .id = random_token(),
        .name = run.name,
        .user = run.user,
        .start_time = run.start_time};
    meta_.artifact_uri = entry(*experiment_meta, "artifact_location") + "/" +
        meta_.id + "/artifacts";
    directory_ = directory / meta_.id;
    for (const char* const name : {"metrics", "params", "artifacts", "tags"})
      fs::create_directories(directory_ / name);
    set_tags(run.tags);
    meta_.write(directory_);
  }
  void resume_run(const std::string& run_id, const std::string& name) override {
    for (const fs::path& experiment : experiments(root_)) {
      const auto meta = read_meta(path_below(experiment, run_id));
      if (!meta) continue;
      if (entry(*meta, "lifecycle_stage") == "deleted") {
        throw ConfigError(format(
            "[trackers] MLflow's run {} was deleted; restore it (mlflow runs "
            "restore), or leave MLFLOW_RUN_ID and run_id out",
            printable(run_id)));
      }
      directory_ = experiment / run_id;
      meta_ = RunMeta{
          .artifact_uri = entry(*meta, "artifact_uri"),
          .experiment_id = entry(*meta, "experiment_id"),
          .id = run_id,
          .name = name.empty() ? entry(*meta, "run_name") : name,
          .user = entry(*meta, "user_id"),
          .start_time = whole_entry(*meta, "start_time"),
          .end_time = whole_entry(*meta, "end_time"),
          .status = kRunning};
      meta_.write(directory_);
      return;
    }
    throw ConfigError(format(
        "[trackers] there is no MLflow run {} in {}; correct MLFLOW_RUN_ID, "
        "run_id or MLFLOW_TRACKING_URI",
        printable(run_id),
        root_.string()));
  }
  void log_params(std::span<const MlflowText> params) override {
    std::vector<std::string> changed;
    for (const MlflowText& each : params) {
      const fs::path path = path_below(directory_ / "params", each.key);
      if (!fs::exists(path)) {
        write_run_file(path, each.value);
      } else if (read_file(path) != each.value) {
        changed.push_back(printable(each.key));
      }
    }
    if (changed.empty()) return;
    throw Error(format(
        "[trackers] MLflow does not change parameters of a run: {} of run {} "
        "keeps its earlier value",
        join(changed, ", "),
        meta_.id));
  }
  void set_tags(std::span<const MlflowText> tags) override {
    for (const MlflowText& each : tags)
      write_run_file(path_below(directory_ / "tags", each.key), each.value);
  }
  void log_metrics(std::span<const MlflowMetric> metrics) override {
    for (const MlflowMetric& each : metrics) {
      metrics_.append(
          path_below(directory_ / "metrics", each.key),
          format(
              "{} {} {}\n",
              each.timestamp,
              TrackedValue(each.value).str(),
              each.step));
    }
  }
  void write_artifact(const std::string& path, std::string_view contents)
      override {
    write_run_file(mlflow_artifact_path(meta_.artifact_uri, path), contents);
  }
  void copy_artifact(const std::string& path, const fs::path& file) override {
    copy_run_file(file, mlflow_artifact_path(meta_.artifact_uri, path));
  }
  void flush() override { metrics_.flush(); }
  void end_run(std::int64_t end_time) override {
    meta_.end_time = end_time;
    meta_.status = kFinished;
    attempt_all({[&] { flush(); }, [&] { meta_.write(directory_); }});
  }
  [[nodiscard]] const std::string& run_id() const override { return meta_.id; }

 private:
  fs::path experiment_directory(const MlflowExperiment& experiment) const {
    for (const fs::path& directory : experiments(root_)) {
      const auto meta = read_meta(directory);
      if (entry(*meta, "name") == experiment.name &&
          entry(*meta, "lifecycle_stage") != "deleted") {
        return directory;
      }
    }
    for (const fs::path& directory : experiments(root_ / ".trash")) {
      if (entry(*read_meta(directory), "name") == experiment.name) {
        throw ConfigError(format(
            "[trackers] MLflow's experiment \"{}\" was deleted; restore it "
            "(mlflow experiments restore), remove {}, or choose another name",
            printable(experiment.name),
            directory.string()));
      }
    }
    return create_experiment(new_experiment_id(), experiment);
  }
  fs::path create_experiment(
      const std::string& id,
      const MlflowExperiment& experiment) const {
    const fs::path directory = root_ / id;
    const std::string location = experiment.artifact_location.empty()
        ? uri_of_path(directory)
        : absolute_artifact_location(experiment.artifact_location);
    const std::int64_t now = now_in_milliseconds();
    for (const MlflowText& tag : experiment.tags)
      write_run_file(path_below(directory / "tags", tag.key), tag.value);
    replace_file(
        directory / "meta.yaml",
        yaml_text(
            {{"artifact_location", location},
             {"creation_time", now},
             {"experiment_id", id},
             {"last_update_time", now},
             {"lifecycle_stage", "active"},
             {"name", experiment.name}}));
    return directory;
  }
  [[nodiscard]] std::vector<fs::path> experiments(const fs::path& below) const {
    std::vector<fs::path> result;
    for (const auto& each : fs::directory_iterator(below)) {
      if (each.is_directory() && fs::exists(each.path() / "meta.yaml"))
        result.push_back(each.path());
    }
    return result;
  }

  fs::path root_;
  fs::path directory_;
  RunMeta meta_;
  GrowingFiles metrics_;
};

}  // namespace

std::unique_ptr<MlflowStore> open_mlflow_files(fs::path directory) {
  return std::make_unique<MlflowFiles>(std::move(directory));
}

}  // namespace accelerate::detail
