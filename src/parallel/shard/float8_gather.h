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

/// Weights that are gathered in the float8 form in which their layers multiply
/// them.
struct Float8Gather {
  DynamicCast cast;
  /// Returns those weights of a module.
  std::function<std::vector<at::Tensor>(const torch::nn::Module& module)>
      weights_of;
};

/// Returns the bytes in which rows of a weight are gathered.
at::Tensor float8_bytes(const at::Tensor& rows, const at::Tensor& scale);
/// Returns the values of such bytes in fp32, on their device.
at::Tensor float8_values(const at::Tensor& bytes, const at::Tensor& scale);

/// The scales of weights that are gathered in float8. A scale covers the values
/// of all ranks, and every rank needs it before the gather. (torchao's
/// precompute_float8_dynamic_scale_for_fsdp also computes them once per step,
/// in one message.)
class GatheredScales {
 public:
  /// `groups`: the ranks that hold the other values of each weight.
  GatheredScales(const DynamicCast& cast, std::vector<Group> groups)
      : cast_(cast), groups_(std::move(groups)) {}

  /// Adds a weight of which this rank has the rows `local`. Its scale (an fp32
  /// scalar on the device of `local`) is undefined before compute() and after
  /// forget(): the weight is then gathered in its own dtype.
  std::shared_ptr<at::Tensor> add(const at::Tensor& local);
  /// Computes the unknown scales. Collective if there are any.
  void compute();
  /// Called when the weights have changed, or will be gathered in their own
  /// dtype.
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
