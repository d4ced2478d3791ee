#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "parallel/plan.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Whether a device map, or whoever quantised the module, decided on which
/// devices its tensors are. Such modules are not moved.
bool is_dispatched(const torch::nn::Module& module);

/// Complaints about a dispatched or quantised model that cannot be prepared like
/// this: trained weights that are offloaded, ways of splitting that need all
/// weights, and, with several ranks, trained weights on other devices than the
/// rank's.
std::vector<std::string> complaints_of_dispatched(
    const torch::nn::Module& module,
    const ParallelPlan& plan,
    const World& world);

}  // namespace accelerate::detail
