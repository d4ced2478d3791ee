#pragma once

#include "params/parameter_table.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Makes `optimizer` step on `local` where a row's is not the row's tensor.
/// A state that it has of the tensor goes over to the local, if it is of the
/// same shape; else ConfigError.
void bind_locals(
    torch::optim::Optimizer& optimizer,
    const ParameterTable& table);

}  // namespace accelerate::detail
