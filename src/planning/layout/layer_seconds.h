#pragma once

#include <optional>

#include "planning/layout/layer_program.h"

namespace accelerate::detail {

/// Seconds of elementwise work on this many elements. All functions here assume
/// a whole processor and exclude messages.
double touch_seconds(const LayoutCase& of, double elements);

/// Seconds that this rank spends in each part of a layer's forward, for one
/// micro-batch.
struct LayerSeconds {
  double projections = 0;
  double attention = 0;
  double mlp = 0;
  double experts = 0;
};
LayerSeconds seconds_of(const LayoutCase& of, const LayerCosts& layer);

/// The sum of the parts.
double forward_seconds(const LayoutCase& of, const LayerCosts& layer);
/// The output layer and the loss.
double head_seconds(const LayoutCase& of);

/// Measured seconds of an all-reduce of a layer's output over the ranks along
/// `tensor`, between layers; nullopt if it was not measured.
std::optional<double> reduction_seconds(const LayoutCase& of);

}  // namespace accelerate::detail
