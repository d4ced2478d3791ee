#pragma once

#include <functional>
#include <memory>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Whether watch_optimizer() can notice the optimizer's end: its options are of
/// a class that LibTorch or this library defines.
[[nodiscard]] bool can_watch(const torch::optim::Optimizer& optimizer);

/// The class of the optimizer's options, for messages.
[[nodiscard]] std::string name_of_options(
    const torch::optim::Optimizer& optimizer);

/// Calls `on_destruction`, once, when the user's optimizer is destroyed, as
/// long as the returned object lives. Null, and never called, if can_watch() is
/// false.
///
/// Implementation: `defaults()` of the optimizer is replaced by a copy of a
/// derived class, which is destroyed with it. Options of groups stay.
std::shared_ptr<void> watch_optimizer(
    torch::optim::Optimizer& optimizer,
    std::function<void()> on_destruction);

}  // namespace accelerate::detail
