#pragma once

#include <vector>

#include "parallel/plan/plan.h"
#include "train/session.h"

namespace accelerate::detail {

/// A model's plan, and its own options that have no effect.
struct ModelPlan {
  ParallelPlan plan;
  bool device_placement = true;
  bool evaluation_mode = false;
  std::vector<IgnoredSetting> ignored = {};
};

/// Makes one plan per model; throws one ConfigError for all of them.
std::vector<ModelPlan> plans_of(
    const Session& session,
    const PrepareRequest& request);

}  // namespace accelerate::detail
