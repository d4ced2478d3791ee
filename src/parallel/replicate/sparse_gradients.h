#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <accelerate/world.h>

#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// The rows whose gradients are sparse: weights of torch::nn::Embedding and
/// EmbeddingBag with `sparse`.
std::vector<const Parameter*> sparse_rows(
    const torch::nn::Module& module,
    const ParameterTable& table);

/// Averages the gradients of parameters whose gradients are sparse.
class SparseGradients {
 public:
  void add(const at::Tensor& parameter);
  [[nodiscard]] bool empty() const { return parameters_.empty(); }
  [[nodiscard]] bool contains(const at::Tensor& parameter) const;

  /// Gives all ranks of `group` the mean of their gradients of each parameter,
  /// as sparse tensors with the rows of all ranks, which are all that is sent.
  /// A gradient that is dense on some rank, because another layer uses the
  /// weight as well, becomes dense on all. Ranks without a gradient contribute
  /// nothing; if no rank has one, or none has changed since the last call, it
  /// stays as it is. Collective.
  void average(const Group& group);

 private:
  /// The gradient that the last average left, and the number of times it had
  /// been written to. The reference keeps its address from being used again.
  struct Averaged {
    explicit Averaged(const at::Tensor& now);
    [[nodiscard]] bool is(const at::Tensor& now) const;

    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> gradient;
    std::int64_t version;
  };

  std::vector<at::Tensor> parameters_;
  /// One entry per parameter.
  std::vector<Averaged> averaged_;
};

}  // namespace accelerate::detail
