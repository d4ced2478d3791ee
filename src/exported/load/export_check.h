#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Warnings for a user who trains the exported programs among a module and its
/// submodules under this autocast: about programs that were exported under
/// another one, or without accelerate_cpp_export.py.
std::vector<std::string> export_warnings(
    const torch::nn::Module& module,
    std::optional<at::ScalarType> autocast);

/// Throws ConfigError if exported programs among a module and its submodules
/// would compute, without autocast, in another dtype than their parameters were
/// exported in: the casts of a program are those of its export.
void require_dtypes_of_export(
    const torch::nn::Module& module,
    at::ScalarType dtype);

}  // namespace accelerate::detail
