#pragma once

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

struct Session;

/// Tells the strategies of all models that `optimizer` has stepped, and gives
/// the figures that they have of the step to the journal of the run.
void end_step(const Session& session, const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
