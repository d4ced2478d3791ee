#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "precision/fp8/float8_matrix.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Weights that are gathered as the layers that read them multiply them.
struct Float8Gather {
  DynamicCast cast;
  /// The weights of a module.
  std::function<std::vector<at::Tensor>(const torch::nn::Module& module)>
      weights_of;
};

/// The scales of weights that are gathered in float8: those of the values of all
/// ranks, which all of them need before they gather. (torchao computes them in
/// precompute_float8_dynamic_scale_for_fsdp, once per step and in one message,
/// too.)
class GatheredScales {
 public:
  /// `groups`: the ranks that have the other values of each weight.
  GatheredScales(const DynamicCast& cast, std::vector<Group> groups)
      : cast_(cast), groups_(std::move(groups)) {}

  /// Adds a weight of which this rank has the rows `local`. Its scale (fp32, a
  /// number on the device of `local`) is undefined until compute(), and after
  /// forget(): the weight is then gathered as it is.
  std::shared_ptr<at::Tensor> add(const at::Tensor& local);
  /// Computes the scales that are not known. Collective if there are any.
  void compute();
  /// The weights have changed, or will be gathered as they are.
  void forget();

 private:
  struct Weight {
    at::Tensor local;
    std::shared_ptr<at::Tensor> scale;
  };

  DynamicCast cast_;
  std::vector<Group> groups_;
  std::vector<Weight> weights_;
  bool is_known_ = false;
};

}  // namespace accelerate::detail
