#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include "gate/gate.h"

namespace accelerate::detail {

/// A product with the transpose of a weight matrix, plus a bias, as modules
/// write it: aten::linear with the weight; or, as in C++ modules, aten::addmm,
/// aten::matmul or aten::mm with a transposed view of it.
struct WeightProduct {
  /// Indices of the two factors among the operator's arguments.
  std::size_t input_at = 0;
  std::size_t weight_at = 0;
  /// Outputs x inputs; the weight itself if the view reveals it.
  at::Tensor weight;
  /// Inputs x outputs.
  at::Tensor transposed;
  /// Undefined without one.
  at::Tensor bias = {};
};

/// Returns the product that the operator computes, if any. `shape_of` returns
/// the shape of the weight that an argument is or is a view of; null for
/// anything else. Views of part of the weight do not count.
std::optional<WeightProduct> weight_product_in(
    GatedCall& call,
    c10::function_ref<const std::vector<std::int64_t>*(const c10::IValue&)>
        shape_of);

/// Returns the product with the weight itself, of inputs x outputs, that the
/// operator computes, if any: aten::addmm, aten::matmul or aten::mm, as Conv1D
/// of Hugging Face writes it. `shape_of` as in weight_product_in().
std::optional<WeightProduct> transposed_product_in(
    GatedCall& call,
    c10::function_ref<const std::vector<std::int64_t>*(const c10::IValue&)>
        shape_of);

}  // namespace accelerate::detail
