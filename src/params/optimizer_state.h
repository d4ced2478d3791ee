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

/// The state of an optimizer, with parameters by name, so that it can be loaded
/// with parameters in another order, in other groups and in other processes.
/// Keys are torch's: exp_avg, momentum_buffer, step, lr, betas ...
struct OptimizerState {
  struct Group {
    StateDict options;
    std::vector<std::string> parameters;
  };
  /// "AdamW", "Adam", "SGD", "Adagrad", "RMSprop" or "LBFGS"; "archive" for any
  /// other class, whose own save() wrote it.
  std::string algorithm;
  std::vector<Group> groups;
  /// State by parameter name, for parameters that have one. LBFGS keeps its
  /// only state under its first parameter.
  std::map<std::string, StateDict> parameters;
  /// The archive of an optimizer of any other class.
  StateDict others;
};

/// Returns the unique name of a tensor that an optimizer steps on.
using NameOfParameter = std::function<std::string(const at::Tensor&)>;

/// Returns the optimizer's state. Tensors of known algorithms are shared with
/// the optimizer, not copied. Throws ConfigError for a class that has state but
/// no save().
OptimizerState read_optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const NameOfParameter& name_of);

/// Why write_optimizer_state() would fail: a different algorithm or number of
/// groups, or parameters that only one side has, unless `may_be_missing`
/// returns true for their names. Empty if nothing would.
std::vector<std::string> optimizer_complaints(
    const torch::optim::Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of,
    const std::function<bool(const std::string& name)>& may_be_missing);

/// Replaces the optimizer's state; tensors are not copied. Parameters without
/// an entry lose their state. Groups are matched by position; a parameter may
/// have moved to another group.
void write_optimizer_state(
    torch::optim::Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of);

/// Adapts the state of a Python optimizer to this one: parameter numbers become
/// names, in group order; options that this class lacks are left out. Throws
/// CheckpointError if the number of parameters differs.
OptimizerState adapt_python_state(
    const torch::optim::Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of);

/// Converts the state to one tree, and back. Throws CheckpointError for a tree
/// that is not such a state.
StateDict to_state_dict(const OptimizerState& state);
OptimizerState optimizer_state_from(const StateDict& state);

}  // namespace accelerate::detail
