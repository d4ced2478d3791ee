#pragma once

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

struct Session;

/// Tells the strategies of all models that `optimizer` has stepped, and writes
/// their figures for the step to the run's journal.
void end_step(const Session& session, const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
