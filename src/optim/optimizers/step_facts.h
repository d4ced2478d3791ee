#pragma once

#include <cstdint>
#include <vector>

#include <torch/optim/optimizer.h>

namespace accelerate::detail {

/// Whether a step can be recorded, to be replayed with other learning rates and
/// step counts: for exactly torch::optim's and accelerate::optim's AdamW, Adam,
/// SGD and Adagrad, and torch::optim::RMSprop.
[[nodiscard]] bool can_be_recorded(const torch::optim::Optimizer& optimizer);

/// Appends to `facts` what a recorded step depends on, besides the learning
/// rate: the groups' other options, where each parameter and its state lie, and
/// by how much step counts differ.
void append_step_facts(
    const torch::optim::Optimizer& optimizer,
    std::vector<std::uint64_t>& facts);

}  // namespace accelerate::detail
