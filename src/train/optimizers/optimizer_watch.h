#pragma once

#include <functional>
#include <memory>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Whether watch_optimizer() can notice the optimizer's destruction: the class
/// of its options is LibTorch's or this library's.
[[nodiscard]] bool can_watch(const torch::optim::Optimizer& optimizer);

/// The class of the optimizer's options, for messages.
[[nodiscard]] std::string name_of_options(
    const torch::optim::Optimizer& optimizer);

/// Calls `on_destruction` once, when the user's optimizer is destroyed,
/// provided that the returned object still lives. Returns null, and never calls
/// it, if can_watch() is false.
///
/// Implementation: the optimizer's `defaults()` are replaced with a copy of a
/// derived class, which is destroyed with the optimizer. Options of groups
/// stay.
std::shared_ptr<void> watch_optimizer(
    torch::optim::Optimizer& optimizer,
    std::function<void()> on_destruction);

}  // namespace accelerate::detail
