#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Complaints about a layer's input: "X must ..., but is ...; ", or nothing.
std::string complain_about_input(
    std::string_view name,
    const at::Tensor& input);

/// Complaints about a parameter of shape [features], which may be undefined: it
/// has the input's dtype, or is fp32 beside bf16 and fp16.
std::string complain_about_parameter(
    std::string_view name,
    const at::Tensor& parameter,
    const at::Tensor& input);

}  // namespace accelerate::detail
