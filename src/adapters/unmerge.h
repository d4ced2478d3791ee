#pragma once

#include "adapters/adapter_keeper.h"

namespace accelerate::detail {

/// Implements unmerge_adapters(); does nothing if none is merged.
void unmerge_all(torch::nn::Module& model, AdapterKeeper& keeper);

}  // namespace accelerate::detail
