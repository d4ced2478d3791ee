#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <accelerate/data_loader_configuration.h>
#include <accelerate/detail/step_parts.h>
#include <accelerate/profiler.h>
#include <accelerate/random.h>

#include "base/process/signal_flag.h"
#include "checkpoint/run/checkpoints.h"
#include "comm/agreement/rank_agreement.h"
#include "track/run_tracking.h"

namespace accelerate::detail {

class CapturedRun;
class DeviceGraph;
class StepGraphs;

/// Position of a prepared loader in its pass.
struct LoaderProgress {
  /// Position in the order of preparation.
  std::int64_t index = 0;
  /// Number of batches handed out.
  std::int64_t num_batches = 0;
  /// Number of micro-steps begun in the current batch.
  int num_micro_steps = 0;
  bool is_last_batch = false;
  /// Number of real samples in the last global batch if it was padded,
  /// otherwise 0.
  std::int64_t remainder = 0;
};

/// The loaders, and the defaults of new ones.
struct LoaderState {
  /// Loaders being read, the innermost last.
  std::vector<LoaderProgress*> active = {};
  /// Defaults of loaders, as the program last set them.
  DataLoaderConfiguration config = {};
  /// Generators that are synchronised at the start of a pass.
  std::vector<RNGType> rng_types = {};
  bool device_placement = true;
  std::int64_t num_loaders = 0;
  /// How often free_memory() was called; loaders prepared earlier are released.
  std::int64_t num_releases = 0;
};

/// Captured steps.
struct Capturing {
  /// The run of a captured step's function that is in progress; null otherwise.
  CapturedRun* run = nullptr;
  /// Makes graphs of the device; unset: as graphs_of() says.
  std::function<std::unique_ptr<DeviceGraph>()> make_graph = nullptr;
  /// The captured steps whose graphs free_memory() frees.
  std::vector<std::weak_ptr<StepGraphs>> steps = {};
};

/// State for training that ends before its data.
struct Ending {
  bool trigger = false;
  /// Signals after which check_preemption() is true, and, since its first call,
  /// whether one has arrived.
  std::vector<int> preemption_signals = {};
  std::unique_ptr<SignalFlag> preemption = nullptr;
};

/// Services of a run from its beginning to its end.
struct Services {
  std::unique_ptr<RankAgreement> agreement = nullptr;
  /// The world's slot on which a profile listens.
  std::shared_ptr<StepSlot> steps = nullptr;
  /// What profile() records by default.
  ProfileOptions profile_options = {};
  Ending ending = {};
  /// Trackers and the run's journal.
  std::unique_ptr<RunTracking> tracking = nullptr;
  /// Last, so that a save in progress ends before anything it uses is
  /// destroyed.
  std::unique_ptr<CheckpointState> checkpoints = nullptr;
};

}  // namespace accelerate::detail
