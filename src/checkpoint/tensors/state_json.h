#pragma once

#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <accelerate/state_dict.h>

namespace accelerate::detail {

using NamedTensors = std::map<std::string, at::Tensor>;

/// A state as JSON. Tensors go to `tensors`, under names that begin with
/// `prefix`; the JSON refers to them. Everything comes back exactly, infinities,
/// NaNs and texts of any bytes too. See docs/reference/checkpoint_format.md.
ACCELERATE_API nlohmann::json to_json(
    const StateDict& state,
    const std::string& prefix,
    NamedTensors& tensors);

/// The state again; `tensor_of` gives the tensors by name. Throws
/// CheckpointError, naming `what`, for anything to_json does not write.
ACCELERATE_API StateDict from_json(
    const nlohmann::json& json,
    const std::string& what,
    const std::function<at::Tensor(const std::string& name)>& tensor_of);

}  // namespace accelerate::detail
