#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Divides the arguments of an operator on a list, in order, so that it can be
/// called with a part at a time: tensors whose memory comes when an operator
/// takes them (is_behind_operators) are then not all in memory at once. One
/// part if there are no such tensors.
std::vector<std::vector<at::Tensor>> memory_parts(
    const std::vector<at::Tensor>& tensors);

}  // namespace accelerate::detail
