#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/state_dict.h>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// What an optimizer knows besides parameters, with parameters by name, so that
/// it survives another order, other groups' sizes and other processes. Keys are
/// those of torch: exp_avg, momentum_buffer, step, lr, betas ….
struct OptimizerState {
  struct Group {
    StateDict options;
    std::vector<std::string> parameters;
  };
  /// "AdamW", "Adam", "SGD", "Adagrad", "RMSprop" or "LBFGS"; "archive" for any
  /// other class, as its own save() wrote it.
  std::string algorithm;
  std::vector<Group> groups;
  /// State by parameter name, for parameters that have one. LBFGS keeps its
  /// only state under its first parameter.
  std::map<std::string, StateDict> parameters;
  /// What a class of another algorithm saved besides.
  StateDict others;
};

/// The name of a tensor that an optimizer steps on, unique among all.
using NameOfParameter = std::function<std::string(const at::Tensor&)>;

/// Tensors are shared with the optimizer, not copied, for known algorithms.
/// Throws ConfigError for a class that keeps a state but has no save().
OptimizerState read_optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const NameOfParameter& name_of);

/// What would go wrong in write_optimizer_state: another algorithm, another
/// number of groups, parameters unknown to either side unless `may_be_missing`
/// says so of their names. Empty: nothing.
std::vector<std::string> optimizer_complaints(
    const torch::optim::Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of,
    const std::function<bool(const std::string& name)>& may_be_missing);

/// Takes the state over, tensors as they are. Parameters without an entry lose
/// theirs. Groups are matched by their place; a parameter may have moved.
void write_optimizer_state(
    torch::optim::Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of);

/// The state, as Python's optimizer gave it, for this one: parameters by their
/// number get names, in the order of the groups; options of Python's class that
/// this one does not have are left out. Throws CheckpointError if it is for
/// another number of parameters.
OptimizerState adapt_python_state(
    const torch::optim::Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of);

/// As one tree, and back. Throws CheckpointError for one that is none.
StateDict to_state_dict(const OptimizerState& state);
OptimizerState optimizer_state_from(const StateDict& state);

}  // namespace accelerate::detail
