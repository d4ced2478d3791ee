#pragma once

namespace accelerate::detail {

struct Session;

/// The share that the loss of this micro-step has in its window. Called once
/// per micro-step: where a loader's end cuts the window short, it also scales
/// the gradients of the window's earlier micro-steps.
double weight_of_micro_step(Session& session);

}  // namespace accelerate::detail
