#include <algorithm>
#include <cstdint>
#include <variant>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "params/optimizer_state.h"

namespace accelerate::detail {

namespace {

// Throws CheckpointError unless `theirs` are the options of the Python class
// with the same algorithm.
void require_same_class(
    const std::string& algorithm,
    const StateDict& ours,
    const StateDict& theirs) {
  for (const auto& [key, value] : ours.values()) {
    // LBFGS stores None if there is no line search.
    if (theirs.contains(key) || key == "line_search_fn") continue;
    throw CheckpointError(format(
        "[checkpoint] the state of a Python optimizer has no option \"{}\", "
        "which {} has; prepare an optimizer of the class that was saved",
        key,
        algorithm));
  }
  const bool is_adam = algorithm == "Adam" || algorithm == "AdamW";
  if (!is_adam || !theirs.contains("decoupled_weight_decay")) return;
  const bool is_decoupled = theirs.get<bool>("decoupled_weight_decay");
  if (is_decoupled == (algorithm == "AdamW") ||
      theirs.get<double>("weight_decay") == 0) {
    return;
  }
  throw CheckpointError(format(
      "[checkpoint] the Python optimizer decayed weights {} the gradients, "
      "which {} does not; prepare {}",
      is_decoupled ? "independently of" : "through",
      algorithm,
      is_decoupled ? "AdamW" : "Adam"));
}

}  // namespace

OptimizerState adapt_python_state(
    const torch::optim::Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of) {
  const OptimizerState present = read_optimizer_state(optimizer, name_of);
  std::vector<std::string> names, numbers;
  for (const auto& group : present.groups) {
    names.insert(names.end(), group.parameters.begin(), group.parameters.end());
  }
  for (const auto& group : state.groups) {
    numbers.insert(
        numbers.end(), group.parameters.begin(), group.parameters.end());
  }
  if (names.size() != numbers.size() ||
      state.groups.size() != present.groups.size()) {
    throw CheckpointError(format(
        "[checkpoint] the state has {} parameters in {} groups, but the "
        "optimizer has {} in {}",
        numbers.size(),
        state.groups.size(),
        names.size(),
        present.groups.size()));
  }
  const bool has_state = std::ranges::any_of(
      state.parameters, [](const auto& each) { return !each.second.empty(); });
  if (present.algorithm == "archive" && has_state) {
    throw CheckpointError(
        "[checkpoint] the optimizer is of a class of this program or library, "
        "which cannot take the state of a Python optimizer; prepare one of "
        "LibTorch's or this library's that Python has as well");
  }
  OptimizerState adapted;
  adapted.algorithm = present.algorithm;
  adapted.groups = present.groups;
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const StateDict& theirs = state.groups[g].options;
    StateDict& ours = adapted.groups[g].options;
    require_same_class(present.algorithm, ours, theirs);
    for (const auto& [key, value] : present.groups[g].options.values()) {
      if (!theirs.contains(key)) continue;
      if (std::holds_alternative<std::int64_t>(value)) {
        ours.set(key, static_cast<std::int64_t>(theirs.get<double>(key)));
      } else {
        ours.set(key, theirs.values().find(key)->second);
      }
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto found = state.parameters.find(numbers[i]);
    if (found == state.parameters.end() || found->second.empty()) continue;
    adapted.parameters.emplace(names[i], found->second);
  }
  return adapted;
}

}  // namespace accelerate::detail
