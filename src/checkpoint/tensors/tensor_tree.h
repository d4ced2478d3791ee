#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/state_dict.h>

#include "format/checkpoint/file_names.h"

namespace accelerate::detail {

/// Returns `state` with every tensor replaced by its name, which begins with
/// `prefix`, and appends the tensors to `tensors`.
StateDict extract_tensors(
    const StateDict& state,
    const std::string& prefix,
    std::vector<std::pair<std::string, at::Tensor>>& tensors);
/// The inverse of extract_tensors().
StateDict insert_tensors(
    const StateDict& state,
    const std::function<at::Tensor(const std::string& name)>& tensor_of);
/// The names that insert_tensors() would ask for.
std::vector<std::string> tensor_names(const StateDict& state);

}  // namespace accelerate::detail
