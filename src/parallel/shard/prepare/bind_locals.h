#pragma once

#include "params/parameter_table.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Makes `optimizer` step on rows' `local` instead of their tensors. State that
/// it already has of a tensor moves to the local; throws ConfigError if that is
/// a shard, unless it is the state that Adagrad is constructed with.
void bind_locals(
    torch::optim::Optimizer& optimizer,
    const ParameterTable& table);

/// Throws ConfigError if `optimizer` has state of a parameter that could not
/// move to a shard of it: it has stepped on the parameter.
void require_movable_state(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table,
    const at::Tensor& parameter);

}  // namespace accelerate::detail
