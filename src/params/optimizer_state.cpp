#include "params/optimizer_state.h"

#include <memory>
#include <set>
#include <utility>

#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "params/optimizer_algorithms.h"
#include "params/optimizer_archive.h"

namespace accelerate::detail {

namespace {

using torch::optim::Optimizer;

// A module's parameters() has a tied tensor once for each of its names, so an
// optimizer may hold it several times; here it counts once, as in Python.
std::vector<std::vector<std::string>> names_by_group(
    const Optimizer& optimizer,
    const NameOfParameter& name_of) {
  std::vector<std::vector<std::string>> names;
  std::set<std::string> known;
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const std::string name = name_of(parameter);
      if (known.insert(name).second) names.back().push_back(name);
    }
  }
  return names;
}

}  // namespace

OptimizerState read_optimizer_state(
    const Optimizer& optimizer,
    const NameOfParameter& name_of) {
  OptimizerState state;
  const OptimizerAlgorithm* const known = find_algorithm(optimizer);
  state.algorithm = known == nullptr ? "archive" : known->name;
  for (auto& names : names_by_group(optimizer, name_of)) {
    state.groups.push_back({{}, std::move(names)});
  }
  if (known == nullptr) {
    state.others = read_archive(optimizer, name_of);
    return state;
  }
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const auto& group = optimizer.param_groups()[g];
    state.groups[g].options = known->options_of(
        const_cast<torch::optim::OptimizerOptions&>(group.options()));
    for (const at::Tensor& parameter : group.params()) {
      const auto found =
          optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      state.parameters.emplace(
          name_of(parameter), known->state_of(*found->second));
    }
  }
  return state;
}

std::vector<std::string> optimizer_complaints(
    const Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of,
    const std::function<bool(const std::string& name)>& may_be_missing) {
  std::vector<std::string> complaints;
  const OptimizerAlgorithm* const known = find_algorithm(optimizer);
  const std::string present = known == nullptr ? "archive" : known->name;
  if (present != state.algorithm) {
    complaints.push_back(format(
        "the state is that of {}, the optimizer is {}",
        state.algorithm,
        present));
    return complaints;
  }
  const auto names = names_by_group(optimizer, name_of);
  if (names.size() != state.groups.size()) {
    complaints.push_back(format(
        "the state has {} parameter groups, the optimizer {}",
        state.groups.size(),
        names.size()));
    return complaints;
  }
  std::set<std::string> saved, wanted;
  for (std::size_t g = 0; g < names.size(); ++g) {
    wanted.insert(names[g].begin(), names[g].end());
    saved.insert(
        state.groups[g].parameters.begin(), state.groups[g].parameters.end());
  }
  for (const std::string& name : wanted) {
    if (!saved.contains(name) && !may_be_missing(name)) {
      complaints.push_back(format("the state has no parameter {}", name));
    }
  }
  for (const std::string& name : saved) {
    if (!wanted.contains(name) && !may_be_missing(name)) {
      complaints.push_back(format("the optimizer has no parameter {}", name));
    }
  }
  return complaints;
}

void write_optimizer_state(
    Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of) {
  if (state.algorithm == "archive") {
    write_archive(optimizer, state.others, name_of);
    return;
  }
  const OptimizerAlgorithm* const known = find_algorithm(state.algorithm);
  if (known == nullptr) {
    throw CheckpointError(format(
        "[checkpoint] optimizer {} is not known to this version",
        state.algorithm));
  }
  // Everything is built before anything is changed.
  std::vector<
      std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>>
      made;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& group = optimizer.param_groups()[g];
    options.push_back(group.options().clone());
    known->set_options(*options.back(), state.groups.at(g).options);
    for (const at::Tensor& parameter : group.params()) {
      const auto found = state.parameters.find(name_of(parameter));
      if (found == state.parameters.end()) continue;
      made.emplace_back(
          parameter.unsafeGetTensorImpl(), known->make_state(found->second));
    }
  }
  optimizer.state().clear();
  for (auto& [key, value] : made) optimizer.state()[key] = std::move(value);
  for (std::size_t g = 0; g < options.size(); ++g) {
    optimizer.param_groups()[g].set_options(std::move(options[g]));
  }
}

}  // namespace accelerate::detail
