#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// The key of a dictionary that stands for a tensor, and holds its name.
inline constexpr const char* kTensorKey = "tensor of the part";

/// Every tensor of `state` replaced by its name, which begins with `prefix`.
StateDict emptied(
    const StateDict& state,
    const std::string& prefix,
    std::vector<std::pair<std::string, at::Tensor>>& tensors);
/// The other way.
StateDict refilled(
    const StateDict& state,
    const std::function<at::Tensor(const std::string& name)>& tensor_of);
/// The names that refilled() would ask for.
std::vector<std::string> tensor_names(const StateDict& state);

}  // namespace accelerate::detail
