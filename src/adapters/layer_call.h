#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include "adapters/layer_adapter.h"
#include "adapters/layer_kind.h"
#include "gate/added_products.h"
#include "gate/gate.h"

namespace accelerate::detail {

/// What identifies a layer whose weight an operator takes.
struct KnownLayer {
  LayerKind kind = LayerKind::linear;
  /// The weight's sizes.
  std::vector<std::int64_t> sizes;
};

/// The operator that computes a layer.
struct LayerCall {
  LayerKind kind = LayerKind::linear;
  c10::OperatorHandle operation;
  at::Tensor input;
  /// The weight in the layout of its kind: [outputs, inputs] for a linear
  /// layer, whichever view the program passed.
  at::Tensor weight;
  /// The bias; undefined without one.
  at::Tensor bias = {};
  /// All arguments of an embedding or a convolution.
  std::vector<c10::IValue> arguments = {};
  /// Set if ranks have slices of the weight; borrowed.
  const DividedProducts* division = nullptr;
};

/// Returns the layer that the operator computes; nothing for any other
/// operator. `layer_of` returns the layer whose weight an argument is or is a
/// view of; null for anything else.
std::optional<LayerCall> layer_call_in(
    GatedCall& call,
    c10::function_ref<const KnownLayer*(const c10::IValue&)> layer_of);

/// The layer's result with an adapter.
at::Tensor with_adapter(
    const LayerCall& call,
    const at::Tensor& result,
    const LayerAdapter& adapter);

}  // namespace accelerate::detail
