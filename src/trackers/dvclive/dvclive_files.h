#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

#include "trackers/files/run_files.h"

namespace accelerate::detail {

/// The files of a run as DVCLive's and DVC's readers expect them:
/// metrics.json (the latest value of each metric), params.yaml,
/// plots/metrics/NAME.tsv (all values) and plots/images/.
class DvcliveFiles {
 public:
  /// Removes the files of an earlier run unless `resumes`. Throws Error if the
  /// directory cannot be used.
  DvcliveFiles(std::filesystem::path directory, bool resumes);

  /// The latest step of the run being resumed.
  [[nodiscard]] std::optional<std::int64_t> resumed_step() const {
    return resumed_step_;
  }

  /// Adds to the existing parameters.
  void write_params(const TrackedValues& values);

  struct MetricOptions {
    /// Milliseconds since 1970, written as a separate column.
    std::optional<std::int64_t> timestamp;
    /// Whether the value becomes a row of the metric's file.
    bool plot = true;
  };
  /// `value`: a number, a boolean or a text. Throws Error for a name that
  /// cannot be a file name.
  void add_metric(
      const std::string& name,
      const TrackedValue& value,
      std::int64_t step,
      const MetricOptions& options);
  /// The step of the latest values.
  void set_step(std::int64_t step) { summary_["step"] = step; }
  void write_image(std::string_view name, std::string_view contents) const;
  void copy_artifact(
      const std::filesystem::path& source,
      std::string_view directory) const;
  /// Lists the files for DVC.
  void write_dvc_yaml(const std::filesystem::path& path) const;

  void flush();
  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_;
  }

 private:
  void remove_earlier_run() const;
  void read_earlier_run();

  std::filesystem::path directory_;
  nlohmann::ordered_json summary_ = nlohmann::ordered_json::object();
  TrackedValues params_;
  std::optional<std::int64_t> resumed_step_;
  GrowingFiles rows_;
};

}  // namespace accelerate::detail
