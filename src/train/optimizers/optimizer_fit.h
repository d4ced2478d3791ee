#pragma once

#include <cstddef>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

struct PreparedModel;
struct Session;

/// Throws ConfigError if ranks hold only parts of the model's parameters that
/// `optimizer` steps on, and it may need more than those to compute its updates
/// (see optim::Elementwise). All ranks decide alike.
void require_fitting_optimizer(
    const torch::optim::Optimizer& optimizer,
    const PreparedModel& model);

/// A digest of the optimizer's groups and of which tensors they hold.
[[nodiscard]] std::size_t digest_of_parameters(
    const torch::optim::Optimizer& optimizer);

/// Lets the session's watch see the optimizer's tensors whose steps only the
/// handle can take.
void watch_steps(Session& session, const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
