#pragma once

#include <memory>
#include <string_view>

#include <accelerate/state_dict.h>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace accelerate::detail {

/// One of LibTorch's algorithms: how to read and write its options and a
/// parameter's state, under torch's keys.
struct OptimizerAlgorithm {
  const char* name;
  bool (*is_options)(const torch::optim::OptimizerOptions&);
  bool (*is_state)(const torch::optim::OptimizerParamState&);
  StateDict (*options_of)(torch::optim::OptimizerOptions&);
  StateDict (*state_of)(torch::optim::OptimizerParamState&);
  void (*set_options)(torch::optim::OptimizerOptions&, const StateDict&);
  std::unique_ptr<torch::optim::OptimizerParamState> (*make_state)(
      const StateDict&);
  /// Number of tensors of a parameter's size in the state of each parameter;
  /// 0 for LBFGS, whose state is one parameter's.
  int (*num_moments)(const torch::optim::OptimizerOptions&);
};

/// The algorithm whose option and state types an optimizer uses; null for a
/// class with its own types.
const OptimizerAlgorithm* find_algorithm(
    const torch::optim::Optimizer& optimizer);

/// Null for a name that is not in the table.
const OptimizerAlgorithm* find_algorithm(std::string_view name);

}  // namespace accelerate::detail
