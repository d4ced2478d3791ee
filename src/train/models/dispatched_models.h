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
