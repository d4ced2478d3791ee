#pragma once

#include "params/parameter_table.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Makes `optimizer` step on rows' `local` instead of their tensors. State that
/// it already has for a tensor moves to the local; throws ConfigError if the
/// local is a shard, unless the state is what Adagrad is constructed with.
void bind_locals(
    torch::optim::Optimizer& optimizer,
    const ParameterTable& table);

/// Throws ConfigError if `optimizer` has state for the parameter that cannot
/// move to a shard, because it has already stepped on it.
void require_movable_state(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table,
    const at::Tensor& parameter);

}  // namespace accelerate::detail
