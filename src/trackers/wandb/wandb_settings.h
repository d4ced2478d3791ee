#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <accelerate/tracker.h>

#include "trackers/tracker_request.h"

namespace accelerate::detail {

/// Where a run's values go.
enum class WandbMode { offline, online, disabled };

/// The settings that wandb.init() takes from its arguments and W&B's variables.
struct WandbSettings {
  WandbMode mode = WandbMode::offline;
  std::string project;
  std::string entity;  ///< empty: W&B's default, as for all texts below
  std::string name;
  std::string run_id;
  std::string group;
  std::string job_type;
  std::string notes;
  std::vector<std::string> tags;
  TrackedValues config;
  /// The directory in which "wandb" is created, or ".wandb" if it already
  /// exists.
  std::filesystem::path directory;
  /// W&B resumes runs only online.
  bool resume = false;
};

/// Arguments take precedence over variables. Throws ConfigError for unknown
/// arguments and for a mode or run id that W&B would refuse.
WandbSettings wandb_settings(const TrackerRequest& request);

/// Whether the request asks for W&B's server: for the mode "online", "run" or
/// "shared". Without a mode, runs are offline.
bool wandb_wants_online(const TrackerRequest& request);

}  // namespace accelerate::detail
