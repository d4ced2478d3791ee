#pragma once

#include <functional>
#include <memory>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Calls `on_destruction`, once, when the user's optimizer is destroyed, as
/// long as the returned object lives. Null, and never called, for an optimizer
/// whose options are of a class that neither LibTorch nor this library defines:
/// those cannot be watched.
///
/// Implementation: `defaults()` of the optimizer is replaced by a copy of a
/// derived class, which is destroyed with it. Options of groups stay.
std::shared_ptr<void> watch_optimizer(
    torch::optim::Optimizer& optimizer,
    std::function<void()> on_destruction);

}  // namespace accelerate::detail
