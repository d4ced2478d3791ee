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

/// One of LibTorch's algorithms: how its options and the state of a parameter
/// are read and written, under the keys of torch.
struct OptimizerAlgorithm {
  const char* name;
  bool (*is_options)(const torch::optim::OptimizerOptions&);
  bool (*is_state)(const torch::optim::OptimizerParamState&);
  StateDict (*options_of)(torch::optim::OptimizerOptions&);
  StateDict (*state_of)(torch::optim::OptimizerParamState&);
  void (*set_options)(torch::optim::OptimizerOptions&, const StateDict&);
  std::unique_ptr<torch::optim::OptimizerParamState> (*make_state)(
      const StateDict&);
};

/// The algorithm whose options and states an optimizer has; null for a class
/// with types of its own.
const OptimizerAlgorithm* find_algorithm(
    const torch::optim::Optimizer& optimizer);

/// Null for a name that is not in the table.
const OptimizerAlgorithm* find_algorithm(std::string_view name);

}  // namespace accelerate::detail
