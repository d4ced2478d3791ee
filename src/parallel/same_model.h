#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "params/parameter_table.h"

namespace accelerate::detail {

/// Throws ConfigError, on all ranks of `group`, saying where models differ in
/// names, types, shapes or what is trained.
void require_same_model(
    const Group& group,
    const ParameterTable& table,
    const std::vector<at::Tensor>& buffers);

/// Gives all ranks of `group` the values of rank `from`, in few messages.
void broadcast_all(
    const Group& group,
    const std::vector<at::Tensor>& tensors,
    int from = 0);

}  // namespace accelerate::detail
