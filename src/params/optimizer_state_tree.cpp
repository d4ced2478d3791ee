#include <cstdint>
#include <utility>

#include <accelerate/error.h>

#include "params/optimizer_state.h"

namespace accelerate::detail {

StateDict to_state_dict(const OptimizerState& state) {
  StateDict tree;
  tree.set("algorithm", state.algorithm);
  std::vector<StateDict> groups;
  for (const OptimizerState::Group& group : state.groups) {
    StateDict parameters;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      parameters.set(group.parameters[i], static_cast<std::int64_t>(i));
    }
    groups.push_back(
        {{"options", group.options}, {"parameters", std::move(parameters)}});
  }
  tree.set("groups", std::move(groups));
  StateDict parameters;
  for (const auto& [name, values] : state.parameters) {
    parameters.set(name, values);
  }
  tree.set("parameters", std::move(parameters));
  if (!state.others.empty()) tree.set("archive", state.others);
  return tree;
}

OptimizerState optimizer_state_from(const StateDict& tree) {
  OptimizerState state;
  state.algorithm = tree.get<std::string>("algorithm");
  for (const StateDict& saved : tree.get<std::vector<StateDict>>("groups")) {
    OptimizerState::Group group;
    group.options = saved.get<StateDict>("options");
    const auto parameters = saved.get<StateDict>("parameters");
    group.parameters.resize(parameters.values().size());
    for (const auto& [name, place] : parameters.values()) {
      const auto index =
          static_cast<std::size_t>(parameters.get<std::int64_t>(name));
      if (index >= group.parameters.size() ||
          !group.parameters[index].empty()) {
        throw CheckpointError(
            "[checkpoint] the parameters of an optimizer's state are damaged");
      }
      group.parameters[index] = name;
    }
    state.groups.push_back(std::move(group));
  }
  const auto parameters = tree.get<StateDict>("parameters");
  for (const auto& [name, value] : parameters.values()) {
    state.parameters.emplace(name, parameters.get<StateDict>(name));
  }
  if (tree.contains("archive")) state.others = tree.get<StateDict>("archive");
  return state;
}

}  // namespace accelerate::detail
