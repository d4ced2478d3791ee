#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// What a user should know before training the exported programs among a
/// module and its submodules under this autocast, a warning each: that a
/// program was exported under another one, or without
/// accelerate_cpp_export.py.
std::vector<std::string> export_warnings(
    const torch::nn::Module& module,
    std::optional<at::ScalarType> autocast);

/// Throws ConfigError if parameters of exported programs among a module and its
/// submodules would be computed with in another dtype than they were exported
/// in, without autocast: the casts of a program are those of its export.
void require_dtypes_of_export(
    const torch::nn::Module& module,
    at::ScalarType dtype);

}  // namespace accelerate::detail
