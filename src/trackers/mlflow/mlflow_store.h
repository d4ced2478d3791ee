#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/environment.h"
#include "trackers/tracker_patience.h"

namespace accelerate::detail {

struct MlflowMetric {
  std::string key;
  double value = 0;
  std::int64_t timestamp = 0;  ///< milliseconds since 1970
  std::int64_t step = 0;
};

/// A parameter or a tag.
struct MlflowText {
  std::string key;
  std::string value;
};

struct MlflowExperiment {
  std::string name;
  /// Where the artifacts of a newly created experiment go, as URI or path;
  /// empty: where the store puts them.
  std::string artifact_location;
  std::vector<MlflowText> tags;  ///< of a newly created experiment
};

struct MlflowNewRun {
  std::string name;
  std::string user;
  std::int64_t start_time = 0;  ///< milliseconds since 1970
  std::vector<MlflowText> tags;
};

/// Limits of one call to MLflow's tracking server.
inline constexpr std::size_t kMostMlflowMetrics = 1000;
inline constexpr std::size_t kMostMlflowTexts = 100;
/// Limits of keys and values that some or all stores enforce.
inline constexpr std::size_t kMostMlflowKeyBytes = 250;
inline constexpr std::size_t kMostMlflowParamCharacters = 6000;
inline constexpr std::size_t kMostMlflowTagCharacters = 8000;

/// Where MLflow keeps experiments and runs. Handles one run at a time:
/// create_run() or resume_run() is called first, and end_run() last. Keys must
/// be valid. Functions throw Error.
class MlflowStore {
 public:
  MlflowStore() = default;
  MlflowStore(const MlflowStore&) = delete;
  MlflowStore& operator=(const MlflowStore&) = delete;
  virtual ~MlflowStore() = default;

  /// Begins a run in the named experiment, which is created if it does not
  /// exist.
  virtual void create_run(
      const MlflowExperiment& experiment,
      const MlflowNewRun& run) = 0;
  /// Continues a run, and renames it unless `name` is empty.
  virtual void resume_run(
      const std::string& run_id,
      const std::string& name) = 0;
  /// Takes at most kMostMlflowTexts.
  virtual void log_params(std::span<const MlflowText> params) = 0;
  virtual void set_tags(std::span<const MlflowText> tags) = 0;
  /// Takes at most kMostMlflowMetrics.
  virtual void log_metrics(std::span<const MlflowMetric> metrics) = 0;
  /// Puts a file at `path` among the run's artifacts.
  virtual void write_artifact(
      const std::string& path,
      std::string_view contents) = 0;
  /// Copies a file, however large, to `path` among the run's artifacts.
  virtual void copy_artifact(
      const std::string& path,
      const std::filesystem::path& file) = 0;
  virtual void flush() {}
  /// Marks the run as finished.
  virtual void end_run(std::int64_t end_time) = 0;

  [[nodiscard]] virtual const std::string& run_id() const = 0;
};

// These throw ConfigError if there is no store and none can be created.
std::unique_ptr<MlflowStore> open_mlflow_files(std::filesystem::path directory);
std::unique_ptr<MlflowStore> open_mlflow_database(
    std::filesystem::path path,
    std::shared_ptr<const TrackerPatience> patience);
std::unique_ptr<MlflowStore> open_mlflow_server(
    const std::string& url,
    const Environment& environment,
    std::shared_ptr<const TrackerPatience> patience);

/// The store of a tracking URI: a path or file: (directories), sqlite:///,
/// http:// or https://; empty: MLflow's choice, ./mlruns if there are runs,
/// otherwise ./mlflow.db. Throws ConfigError.
std::unique_ptr<MlflowStore> open_mlflow_store(
    const std::string& uri,
    const Environment& environment,
    const std::shared_ptr<const TrackerPatience>& patience);

// Shared by the stores.
/// Now, in milliseconds since 1970.
std::int64_t now_in_milliseconds();
/// Where an artifact is if the run's artifact URI is a path or a file: URI.
/// Throws Error for other URIs, and for a path that is not below it.
std::filesystem::path mlflow_artifact_path(
    const std::string& artifact_uri,
    const std::string& path);
/// The path of a file: URI or of a plain path; empty for other URIs.
std::filesystem::path path_of_uri(const std::string& uri);
/// The file: URI of a path.
std::string uri_of_path(const std::filesystem::path& path);
/// A URI unchanged, or a path made absolute.
std::string absolute_artifact_location(const std::string& location);

/// Why MLflow refuses the name of a metric, parameter or tag; empty if it
/// accepts it.
std::string complaint_about_mlflow_key(std::string_view key);

/// Number of characters in UTF-8 text.
std::size_t num_characters(std::string_view text);
/// The first `most` characters of the text, or all of it.
std::string first_characters(std::string_view text, std::size_t most);

/// The statements of mlflow_schema.sql, which the build embeds in the library.
extern const std::string_view kMlflowSchema;

}  // namespace accelerate::detail
