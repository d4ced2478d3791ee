#pragma once

#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <accelerate/state_dict.h>

namespace accelerate::detail {

using NamedTensors = std::map<std::string, at::Tensor>;

/// Converts a state to JSON. Tensors go to `tensors`, under names that begin
/// with `prefix`; the JSON refers to them. from_json() restores all values
/// exactly, including infinities, NaNs and strings of arbitrary bytes. See
/// docs/reference/checkpoint_format.md.
nlohmann::json to_json(
    const StateDict& state,
    const std::string& prefix,
    NamedTensors& tensors);

/// Restores the state; `tensor_of` returns tensors by name. Throws
/// CheckpointError, naming `what`, for anything that to_json does not write.
StateDict from_json(
    const nlohmann::json& json,
    const std::string& what,
    const std::function<at::Tensor(const std::string& name)>& tensor_of);

}  // namespace accelerate::detail
