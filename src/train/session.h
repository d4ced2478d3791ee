#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <accelerate/parallel.h>
#include <accelerate/precision.h>
#include <accelerate/world.h>

#include "config/settings.h"
#include "parallel/strategy.h"
#include "params/parameter_table.h"
#include "train/step_clock.h"

namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace accelerate::detail {

struct Session;

struct PreparedModel {
  Session* session = nullptr;  // its owner
  std::shared_ptr<torch::nn::Module> module;
  ParameterTable table;
  std::vector<std::unique_ptr<Strategy>> strategies;
  std::optional<c10::ScalarType> autocast_dtype;
  bool strategies_need_outputs = false;
  /// False inside accumulate() and no_sync() while a window is not at its end.
  bool sync_gradients = true;
};

struct PreparedOptimizer {
  Session* session = nullptr;
  torch::optim::Optimizer* inner = nullptr;
  /// The window has gradients that no step has used yet.
  bool is_accumulating = false;
};

struct PreparedScheduler {
  Session* session = nullptr;
  torch::optim::LRScheduler* inner = nullptr;
};

/// Where a prepared loader is in its pass.
struct LoaderProgress {
  bool is_last_batch = false;
  /// Real samples of the last global batch if it was filled up; else 0.
  std::int64_t remainder = 0;
};

/// What the handles share. Holds the parts in the order in which they may be
/// taken down, last first: strategies before groups.
struct Session {
  Settings settings;
  World world;
  Mesh mesh;
  ParallelOptions parallel;
  Precision precision = Precision::no;
  std::string project_dir;
  StepClock clock;
  bool trigger = false;
  std::vector<std::unique_ptr<PreparedModel>> models;
  std::vector<std::unique_ptr<PreparedOptimizer>> optimizers;
  std::vector<std::unique_ptr<PreparedScheduler>> schedulers;
  /// Loaders now being read, the innermost last.
  std::vector<const LoaderProgress*> active_loaders;
  /// The ranks of this machine; made when first needed.
  std::optional<Group> local_group;

  [[nodiscard]] const LoaderProgress* active_loader() const {
    return active_loaders.empty() ? nullptr : active_loaders.back();
  }
};

}  // namespace accelerate::detail
