#pragma once

#include <accelerate/big_model.h>

namespace accelerate::detail {

/// dispatch_module() for a module with quantized weights whose offload folder
/// already holds the codes that are placed on "disk".
Dispatch dispatch_loaded_codes(
    torch::nn::Module& module,
    const DispatchOptions& options);

}  // namespace accelerate::detail
