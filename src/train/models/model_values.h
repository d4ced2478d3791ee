#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/parallel.h>

#include "train/session.h"

namespace accelerate::detail {

/// Those that are defined.
std::vector<at::Tensor> parameters_and_buffers(const torch::nn::Module& module);

/// True for a tensor of a model that was made without memory.
bool has_no_values(const at::Tensor& tensor);

/// Tensors without memory are skipped; they get it on the right device later.
void move_to_device(torch::nn::Module& module, const at::Device& device);

/// Where the module's tensors are; `otherwise` if it has none with memory.
at::Device device_of(
    const torch::nn::Module& module,
    const at::Device& otherwise);

/// True if the rank whose initial values this model (or this stage of it) takes
/// has none. With `keeps_own` each rank takes its own. Collective.
bool lacks_values(
    const Mesh& mesh,
    const torch::nn::Module& module,
    bool keeps_own);

/// Gives meta tensors memory unless a strategy accepts them empty.
void give_memory(PreparedModel& model);

}  // namespace accelerate::detail
