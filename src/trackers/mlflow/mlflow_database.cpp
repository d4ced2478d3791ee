#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/encoding.h"
#include "base/text/text.h"
#include "trackers/files/database.h"
#include "trackers/files/run_files.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

namespace {

// The columns that are read and written here; there may be others.
constexpr std::pair<const char*, const char*> kUsedColumns[] = {
    {"experiments", "last_update_time"},
    {"experiments", "artifact_location"},
    {"experiments", "lifecycle_stage"},
    {"experiment_tags", "experiment_id"},
    {"runs", "deleted_time"},
    {"runs", "artifact_uri"},
    {"metrics", "is_nan"},
    {"metrics", "step"},
    {"latest_metrics", "is_nan"},
    {"params", "value"},
    {"tags", "value"}};

/// MLflow's tables in a SQLite file. Artifacts are separate files, by default
/// below ./mlruns.
class MlflowDatabase final : public MlflowStore {
 public:
  MlflowDatabase(fs::path path, std::shared_ptr<const TrackerPatience> patience)
      : database_(std::move(path), std::move(patience)) {
    prepare_tables();
  }

  void create_run(const MlflowExperiment& experiment, const MlflowNewRun& run)
      override {
    DatabaseTransaction transaction(database_);
    const std::string id = experiment_id(experiment);
    run_id_ = random_token();
    artifact_uri_ = database_
                        .text(
                            "SELECT artifact_location FROM experiments WHERE "
                            "experiment_id = ?",
                            {id})
                        .value_or("") +
        "/" + run_id_ + "/artifacts";
    database_.query(
        "INSERT INTO runs (run_uuid, name, source_type, source_name, "
        "entry_point_name, user_id, status, start_time, source_version, "
        "lifecycle_stage, artifact_uri, experiment_id) VALUES (?, ?, "
        "'UNKNOWN', '', '', ?, 'RUNNING', ?, '', 'active', ?, ?)",
        {run_id_, run.name, run.user, run.start_time, artifact_uri_, id});
    for (const MlflowText& tag : run.tags) {
      database_.query(
          "INSERT OR REPLACE INTO tags (key, value, run_uuid) VALUES (?, ?, ?)",
          {tag.key, tag.value, run_id_});
    }
    transaction.commit();
  }
  void resume_run(const std::string& run_id, const std::string& name) override {
    const auto rows = database_.query(
        "SELECT artifact_uri, lifecycle_stage FROM runs WHERE run_uuid = ?",
        {run_id});
    if (rows.empty() || rows.front().at(1) == DatabaseValue("deleted")) {
      throw ConfigError(format(
          "[trackers] {} MLflow run {} in {}; correct MLFLOW_RUN_ID, run_id or "
          "MLFLOW_TRACKING_URI",
          rows.empty() ? "there is no" : "there is only a deleted",
          printable(run_id),
          database_.path().string()));
    }
    run_id_ = run_id;
    if (const auto* const uri = std::get_if<std::string>(&rows.front().at(0)))
      artifact_uri_ = *uri;
    database_.query(
        "UPDATE runs SET status = 'RUNNING' WHERE run_uuid = ?", {run_id_});
    if (name.empty()) return;
    database_.query(
        "UPDATE runs SET name = ? WHERE run_uuid = ?", {name, run_id_});
  }
  void log_params(std::span<const MlflowText> params) override {
    std::vector<std::string> changed;
    DatabaseTransaction transaction(database_);
    for (const MlflowText& each : params) {
      database_.query(
          "INSERT OR IGNORE INTO params (key, value, run_uuid) "
          "VALUES (?, ?, ?)",
          {each.key, each.value, run_id_});
      const auto kept = database_.text(
          "SELECT value FROM params WHERE key = ? AND run_uuid = ?",
          {each.key, run_id_});
      if (kept != each.value) changed.push_back(printable(each.key));
    }
    transaction.commit();
    if (changed.empty()) return;
    throw Error(format(
        "[trackers] MLflow does not change parameters of a run: {} of run {} "
        "keeps its earlier value",
        join(changed, ", "),
        run_id_));
  }
  void set_tags(std::span<const MlflowText> tags) override {
    DatabaseTransaction transaction(database_);
    for (const MlflowText& each : tags) {
      database_.query(
          "INSERT OR REPLACE INTO tags (key, value, run_uuid) VALUES (?, ?, ?)",
          {each.key, each.value, run_id_});
    }
    transaction.commit();
  }
  void log_metrics(std::span<const MlflowMetric> metrics) override {
    DatabaseTransaction transaction(database_);
    for (const MlflowMetric& each : metrics) {
      const bool is_nan = std::isnan(each.value);
      // SQL has no infinity; MLflow uses the largest numbers instead.
      const double most = std::numeric_limits<double>::max();
      const double value =
          is_nan ? 0.0 : std::max(-most, std::min(most, each.value));
      const DatabaseRow row = {
          each.key,
          value,
          each.timestamp,
          each.step,
          std::int64_t{is_nan},
          run_id_};
      database_.query(
          "INSERT OR IGNORE INTO metrics (key, value, timestamp, step, is_nan, "
          "run_uuid) VALUES (?, ?, ?, ?, ?, ?)",
          row);
      database_.query(
          "INSERT INTO latest_metrics "
          "(key, value, timestamp, step, is_nan, run_uuid) "
          "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key, run_uuid) DO UPDATE SET "
          "value = excluded.value, timestamp = excluded.timestamp, "
          "step = excluded.step, is_nan = excluded.is_nan "
          "WHERE (excluded.step, excluded.timestamp, excluded.value) >= "
          "(latest_metrics.step, latest_metrics.timestamp, "
          "latest_metrics.value)",
          row);
    }
    transaction.commit();
  }
  void write_artifact(const std::string& path, std::string_view contents)
      override {
    write_run_file(mlflow_artifact_path(artifact_uri_, path), contents);
  }
  void copy_artifact(const std::string& path, const fs::path& file) override {
    copy_run_file(file, mlflow_artifact_path(artifact_uri_, path));
  }
  void end_run(std::int64_t end_time) override {
    database_.query(
        "UPDATE runs SET status = 'FINISHED', end_time = ? WHERE run_uuid = ?",
        {end_time, run_id_});
  }
  [[nodiscard]] const std::string& run_id() const override { return run_id_; }

 private:
  void prepare_tables() {
    DatabaseTransaction transaction(database_);
    if (!database_.has_table("alembic_version")) {
      if (database_.has_table("runs") || database_.has_table("experiments")) {
        throw ConfigError(format(
            "[trackers] {} has tables of a version of MLflow before 1.0; "
            "update it with \"mlflow db upgrade\"",
            database_.path().string()));
      }
      database_.run(std::string(kMlflowSchema));
      create_experiment({"Default", "", {}});
      database_.run(
          "UPDATE experiments SET experiment_id = 0, artifact_location = "
          "substr(artifact_location, 1, length(artifact_location) - 1) || '0'");
      transaction.commit();
      return;
    }
    for (const auto& [table, column] : kUsedColumns) {
      if (database_.has_column(table, column)) continue;
      throw ConfigError(format(
          "[trackers] {} is a database of MLflow of schema version {}, whose "
          "table {} has no {}; update it with \"mlflow db upgrade\", or choose "
          "another one with MLFLOW_TRACKING_URI",
          database_.path().string(),
          database_.text("SELECT version_num FROM alembic_version")
              .value_or("unknown"),
          table,
          column));
    }
  }
  std::string experiment_id(const MlflowExperiment& experiment) {
    const auto rows = database_.query(
        "SELECT CAST(experiment_id AS TEXT), lifecycle_stage FROM experiments "
        "WHERE name = ?",
        {experiment.name});
    if (rows.empty()) return std::to_string(create_experiment(experiment));
    if (rows.front().at(1) == DatabaseValue("deleted")) {
      throw ConfigError(format(
          "[trackers] MLflow's experiment \"{}\" was deleted; restore it "
          "(mlflow experiments restore), or choose another name",
          printable(experiment.name)));
    }
    return std::get<std::string>(rows.front().at(0));
  }
  std::int64_t create_experiment(const MlflowExperiment& experiment) {
    const std::int64_t now = now_in_milliseconds();
    database_.query(
        "INSERT INTO experiments (name, lifecycle_stage, creation_time, "
        "last_update_time) VALUES (?, 'active', ?, ?)",
        {experiment.name, now, now});
    const std::int64_t id = database_.last_id();
    const std::string location = experiment.artifact_location.empty()
        ? (fs::absolute("mlruns") / std::to_string(id)).string()
        : absolute_artifact_location(experiment.artifact_location);
    database_.query(
        "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
        {location, id});
    for (const MlflowText& tag : experiment.tags) {
      database_.query(
          "INSERT INTO experiment_tags (key, value, experiment_id) "
          "VALUES (?, ?, ?)",
          {tag.key, tag.value, id});
    }
    return id;
  }

  Database database_;
  std::string run_id_;
  std::string artifact_uri_;
};

}  // namespace

std::unique_ptr<MlflowStore> open_mlflow_database(
    fs::path path,
    std::shared_ptr<const TrackerPatience> patience) {
  return std::make_unique<MlflowDatabase>(std::move(path), std::move(patience));
}

}  // namespace accelerate::detail
