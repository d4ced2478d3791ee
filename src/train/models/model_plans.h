#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "parallel/plan/plan.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

struct PreparedItems;
struct PrepareRequest;
struct Session;

/// A model's plan, and its own options that have no effect.
struct ModelPlan {
  ParallelPlan plan;
  bool device_placement = true;
  bool evaluation_mode = false;
  std::vector<IgnoredSetting> ignored = {};
};

/// Throws ConfigError for everything that prepare() rejects whatever the plans
/// are, before anything is changed.
void require_preparable(
    const ParallelPlan& plan,
    const PreparedItems& prepared,
    const PrepareRequest& request);

/// Makes one plan per model; throws one ConfigError for all of them.
std::vector<ModelPlan> plans_of(
    const Session& session,
    const PrepareRequest& request);

/// Whether a device map or the code that quantised the module decided which
/// devices hold its tensors. Such modules are not moved.
bool is_dispatched(const torch::nn::Module& module);

/// Complaints about a dispatched or quantised model that cannot be prepared
/// this way: trained weights that are offloaded, ways of splitting that need
/// all weights, and, with several ranks, trained weights on devices other than
/// the rank's.
std::vector<std::string> complaints_of_dispatched(
    const torch::nn::Module& module,
    const ParallelPlan& plan,
    const World& world);

}  // namespace accelerate::detail
