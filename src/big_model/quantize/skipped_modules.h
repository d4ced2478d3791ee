#pragma once

#include <string>
#include <vector>

#include <accelerate/quantized_model.h>

namespace accelerate::detail {

/// Names of modules that a configuration keeps from being quantised.
std::vector<std::string> skipped_modules(
    const torch::nn::Module& model,
    const QuantizationConfig& config);

}  // namespace accelerate::detail
