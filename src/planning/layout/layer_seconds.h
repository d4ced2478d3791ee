#pragma once

#include <optional>

#include "planning/layout/layer_program.h"

namespace accelerate::detail {

/// Seconds of elementwise work on so many elements. These and the others are of
/// a whole processor, without messages.
double touch_seconds(const LayoutCase& of, double elements);

/// The parts of a layer's forward of a micro-batch on this rank.
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

/// What a sum over the ranks along `tensor` takes of elements as many as a layer
/// hands on, measured between layers; nothing if it was not.
std::optional<double> reduction_seconds(const LayoutCase& of);

}  // namespace accelerate::detail
