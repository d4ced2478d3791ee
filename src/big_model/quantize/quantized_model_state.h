#pragma once

#include <accelerate/big_model.h>
#include <accelerate/quantized_model.h>
#include <accelerate/weights.h>

#include "big_model/quantize/weight_keeper.h"

namespace accelerate {

struct QuantizedModel::State {
  explicit State(detail::ProductKind kind) : keeper(kind) {}

  detail::QuantizedWeightKeeper keeper;
  /// Must be destroyed first, since it holds codes of the keeper.
  Dispatch dispatch;
  /// Handles to the module's tensors.
  WeightList tensors;
};

}  // namespace accelerate
