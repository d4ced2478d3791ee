#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

#include "trackers/wandb/wandb_log.h"
#include "trackers/wandb/wandb_settings.h"

namespace accelerate::detail {

/// Collects what is logged into rows, one per step, as wandb.Run.log() does:
/// values of one step form one row, which is complete when a later step or a
/// call without a step follows.
class WandbHistory {
 public:
  struct Row {
    std::int64_t step = 0;
    double seconds = 0;  ///< when its last value was logged, since 1970
    /// An object, without W&B's own keys.
    nlohmann::ordered_json values = nlohmann::ordered_json::object();
  };

  /// Advances to the step, and returns the row that is thereby complete, if
  /// any.
  std::optional<Row> advance(std::optional<std::int64_t> step);
  /// Whether it is too late to log for that step.
  [[nodiscard]] bool is_past(std::optional<std::int64_t> step) const {
    return step && *step < row_.step;
  }
  /// The step of the values that are added next.
  [[nodiscard]] std::int64_t step() const { return row_.step; }

  void add(const nlohmann::ordered_json& values, double seconds);
  /// Completes the row and advances to the next step.
  std::optional<Row> commit();

 private:
  std::optional<Row> take(std::int64_t next_step);

  Row row_;
};

/// The program and the machine of a run.
struct WandbEnvironment {
  std::string host;
  std::string operating_system;
  std::string program;
  std::vector<std::string> arguments;
  std::string directory;
  std::uint32_t num_processors = 0;
  std::uint64_t memory_bytes = 0;

  /// The environment of this process.
  static WandbEnvironment current();
};

/// Writes a run's records, messages of wandb_internal.proto, to its file.
class WandbRecords {
 public:
  /// Begins the file with what wrote it, the run, and its environment.
  WandbRecords(
      const std::filesystem::path& path,
      const WandbSettings& settings,
      const WandbEnvironment& environment,
      double begin);

  void add_config(const TrackedValues& values);
  void add_history(const WandbHistory::Row& row, double runtime);
  /// `values`: an object with what has changed.
  void add_summary(const nlohmann::ordered_json& values);
  /// Adds a file of the run, by its path below "files".
  void add_file(const std::string& path);
  void add_exit(double runtime);
  void flush() { log_.flush(); }

 private:
  void add(std::uint32_t field, const std::string& message);
  void add_run(const WandbSettings& settings, const std::string& host);
  void add_environment(const WandbEnvironment& environment);
  void add_telemetry(bool has_finished);

  WandbLog log_;
  std::string run_id_;
  double begin_ = 0;
  std::int64_t num_records_ = 0;
};

}  // namespace accelerate::detail
