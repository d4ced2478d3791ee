#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include <accelerate/safetensors.h>

namespace accelerate::detail {

/// PyTorch's name of a dtype: "bfloat16".
std::string dtype_name(c10::ScalarType dtype);

/// The dtype of such a name, also with "torch." before it; nothing for others.
std::optional<c10::ScalarType> parse_torch_dtype(std::string_view name);

/// The dtype of such a name in the formats of files; nothing for dtypes that
/// they lack.
std::optional<safetensors::Dtype> weight_dtype(std::string_view name);

}  // namespace accelerate::detail
