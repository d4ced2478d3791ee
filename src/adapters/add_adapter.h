#pragma once

#include <string>
#include <vector>

#include <accelerate/adapters.h>

namespace accelerate::detail {

/// Implements add_adapters().
std::vector<std::string> add_adapter(
    torch::nn::Module& model,
    AdapterOptions options,
    const std::string& name,
    bool is_trainable);

}  // namespace accelerate::detail
