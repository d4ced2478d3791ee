#pragma once

#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "params/parameter_table.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Keeps the moments of Adam and AdamW in 8 and 16 bits between steps: the
/// first in float8 (e4m3), the others in fp16, each tensor with a scale of its
/// own. Unpacking and packing again is lossless.
class ScaledMoments {
 public:
  /// Throws ConfigError for an optimizer of another class that steps on
  /// parameters of `table`.
  static void require_adam(
      const torch::optim::Optimizer& optimizer,
      const ParameterTable& table);

  /// Packs the state of the table's parameters that is not packed yet: exp_avg
  /// becomes float8 codes, exp_avg_sq and max_exp_avg_sq fp16 ones.
  void pack(
      const torch::optim::Optimizer& optimizer,
      const ParameterTable& table);
  /// Restores the moments as tensors in the dtype of the parameter.
  void unpack(
      const torch::optim::Optimizer& optimizer,
      const ParameterTable& table);

 private:
  struct Scales {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
    at::Tensor max_exp_avg_sq;
  };

  /// Scales by the state of a parameter, while it is packed.
  std::unordered_map<const void*, Scales> scales_;
};

}  // namespace accelerate::detail
