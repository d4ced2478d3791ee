#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <accelerate/parallel.h>

#include "config/settings.h"
#include "engines/request/read_request.h"
#include "parallel/plan/plan.h"

namespace accelerate::detail {

/// Settings that were given and have no effect; see
/// report_settings_without_effect().
struct SettingsReport {
  /// Settings that an engine ignores, known from the start.
  std::vector<IgnoredSetting> ignored = {};
  /// How many of these have been reported.
  std::size_t num_reported = 0;
  bool is_made = false;
  /// True if a schedule was prepared that the engine's settings describe.
  bool has_engine_schedule = false;
};

/// The settings in force, and how they divide the training.
struct SessionLayout {
  /// Settings with their origins.
  Settings settings;
  SettingsReport report = {};
  /// The plan for models without their own options.
  ParallelPlan plan;
  Mesh mesh;
  /// The request for which the plan was made, and its sources: the basis for
  /// plans of models with their own options.
  PlanRequest plan_request = {};
  RequestSources request_sources = {};
  /// Samples per rank and micro-step of each prepared loader; only with
  /// DeepSpeed, whose configuration names them.
  std::vector<std::int64_t> deepspeed_micro_batches = {};
  /// Meshes of models whose degrees differ from the session's.
  std::vector<Mesh> other_meshes = {};
  /// True once the warning that maybe_context_parallel() splits nothing was
  /// given.
  bool has_warned_of_context = false;
};

}  // namespace accelerate::detail
