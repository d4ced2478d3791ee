#pragma once

#include <vector>

#include "parallel/plan/plan.h"

namespace accelerate::detail {

struct PrepareRequest;
struct Session;

/// A model's plan, and its own options that have no effect.
struct ModelPlan {
  ParallelPlan plan;
  bool device_placement = true;
  bool evaluation_mode = false;
  std::vector<IgnoredSetting> ignored = {};
};

/// Throws ConfigError for everything that prepare() refuses whatever the plans
/// are, before anything is changed.
void require_preparable(const Session& session, const PrepareRequest& request);

/// Makes one plan per model; throws one ConfigError for all of them.
std::vector<ModelPlan> plans_of(
    const Session& session,
    const PrepareRequest& request);

}  // namespace accelerate::detail
