#pragma once

namespace accelerate::detail {

struct Session;

/// The weight of this micro-step's loss in its window. Called once per
/// micro-step: where a loader's end cuts the window short, it also scales the
/// gradients of the window's earlier micro-steps.
double weight_of_micro_step(Session& session);

}  // namespace accelerate::detail
