#pragma once

#include <accelerate/big_model.h>

namespace accelerate::detail {

/// dispatch_module() for a module whose weights are held as codes, and whose
/// offload folder has those of the place "disk" already, as they are.
Dispatch dispatch_loaded_codes(
    torch::nn::Module& module,
    const DispatchOptions& options);

}  // namespace accelerate::detail
