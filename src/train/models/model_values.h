#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/parallel.h>

#include "train/session/prepared.h"

namespace accelerate::detail {

/// The module's parameters and buffers that are defined.
std::vector<at::Tensor> parameters_and_buffers(const torch::nn::Module& module);

/// True for a model's tensor that was made without memory.
bool has_no_values(const at::Tensor& tensor);

/// Skips tensors without memory, which get it on the right device later.
void move_to_device(torch::nn::Module& module, const at::Device& device);

/// The device of the module's tensors; `otherwise` if none has memory.
at::Device device_of(
    const torch::nn::Module& module,
    const at::Device& otherwise);

/// True if the rank that provides the initial values of this model (or stage)
/// has none. With `keeps_own`, each rank provides its own. Collective.
bool lacks_values(
    const Mesh& mesh,
    const torch::nn::Module& module,
    bool keeps_own);

/// Gives meta tensors memory unless a strategy accepts them empty.
void give_memory(PreparedModel& model);

}  // namespace accelerate::detail
