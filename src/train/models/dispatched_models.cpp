#include "train/models/dispatched_models.h"

#include <algorithm>

#include <torch/nn/module.h>

#include <accelerate/accelerator.h>
#include <accelerate/module_tensors.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace detail {

bool is_dispatched(const torch::nn::Module& module) {
  const auto is_placed = [](const at::Tensor& tensor) {
    return tensor.defined() && num_places_of(tensor) > 0;
  };
  const auto parameters = module.parameters();
  const auto buffers = module.buffers();
  return std::any_of(parameters.begin(), parameters.end(), is_placed) ||
      std::any_of(buffers.begin(), buffers.end(), is_placed);
}

std::vector<std::string> complaints_of_dispatched(
    const torch::nn::Module& module,
    const ParallelPlan& plan,
    const World& world) {
  std::vector<std::string> trained, elsewhere;
  bool has_offloaded = false;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    const bool is_away = is_offloaded_or_coded(tensor);
    has_offloaded = has_offloaded || is_away;
    if (!tensor.requires_grad()) continue;
    if (is_away) trained.push_back(item.key());
    if (tensor.device() != world.device()) elsewhere.push_back(item.key());
  }
  std::vector<std::string> complaints;
  if (!trained.empty()) {
    complaints.push_back(format(
        "{} are offloaded, and an optimizer cannot change offloaded weights: "
        "freeze them (requires_grad_(false)), or keep their modules in memory "
        "(device_map)",
        name_list(trained)));
  }
  if (world.size() > 1 && !elsewhere.empty() && is_dispatched(module)) {
    complaints.push_back(format(
        "its device map puts {} on other devices than {}, where ranks average "
        "gradients; give each rank a map with its own device, or train with "
        "one process",
        name_list(elsewhere),
        world.device().str()));
  }
  for (const Axis axis : {Axis::shard, Axis::tensor, Axis::pipeline}) {
    if (!has_offloaded || plan.degree(axis) == 1) continue;
    complaints.push_back(format(
        "it has offloaded or quantised weights, which {} = {} would have to "
        "split; replicate it instead",
        name_of(axis),
        plan.degree(axis)));
  }
  return complaints;
}

}  // namespace detail

}  // namespace accelerate
