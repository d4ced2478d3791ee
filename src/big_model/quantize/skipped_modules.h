#pragma once

#include <string>
#include <vector>

#include <accelerate/quantized_model.h>

namespace accelerate::detail {

/// Names of modules that a configuration excludes from quantisation.
std::vector<std::string> skipped_modules(
    const torch::nn::Module& model,
    const QuantizationOptions& config);

}  // namespace accelerate::detail
