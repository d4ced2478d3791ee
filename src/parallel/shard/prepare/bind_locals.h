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

}  // namespace accelerate::detail
