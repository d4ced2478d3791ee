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

}  // namespace accelerate::detail
