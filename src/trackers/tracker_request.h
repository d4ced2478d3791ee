#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <accelerate/tracker.h>

#include "config/environment.h"
#include "trackers/tracker_patience.h"

namespace accelerate::detail {

/// The inputs from which a tracker is made.
struct TrackerRequest {
  /// The project or run name given to init_trackers().
  std::string project_name;
  /// Empty if there is none.
  std::filesystem::path logging_dir;
  /// init_kwargs of this tracker. Unknown names are an error that lists the
  /// known ones.
  TrackedValues init_kwargs;
  Environment environment;
  /// When the run began, in seconds since 1970.
  double begin = 0;
  /// How long it may wait for others.
  std::shared_ptr<const TrackerPatience> patience =
      std::make_shared<TrackerPatience>();
  /// Prints a warning; called on any thread.
  std::function<void(const std::string&)> warn;
};

using MakeTracker =
    std::unique_ptr<GeneralTracker> (*)(const TrackerRequest& request);

// One per native tool; each throws ConfigError for a request that it cannot
// satisfy.
std::unique_ptr<GeneralTracker> make_tensorboard(const TrackerRequest& request);
std::unique_ptr<GeneralTracker> make_wandb(const TrackerRequest& request);
std::unique_ptr<GeneralTracker> make_mlflow(const TrackerRequest& request);
std::unique_ptr<GeneralTracker> make_dvclive(const TrackerRequest& request);
std::unique_ptr<GeneralTracker> make_trackio(const TrackerRequest& request);
// These trackers use the tool's own Python package.
std::unique_ptr<GeneralTracker> make_comet_ml(const TrackerRequest& request);
std::unique_ptr<GeneralTracker> make_aim(const TrackerRequest& request);
std::unique_ptr<GeneralTracker> make_clearml(const TrackerRequest& request);
std::unique_ptr<GeneralTracker> make_swanlab(const TrackerRequest& request);

}  // namespace accelerate::detail
