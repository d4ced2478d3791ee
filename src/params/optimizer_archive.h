#pragma once

#include <accelerate/state_dict.h>

#include "params/optimizer_state.h"

namespace accelerate::detail {

/// What the optimizer's own save() writes, with names in place of LibTorch's
/// addresses of parameters. For classes whose state only they know. Throws
/// ConfigError for one that keeps a state but writes none.
StateDict read_archive(
    const torch::optim::Optimizer& optimizer,
    const NameOfParameter& name_of);

/// Gives it back through load().
void write_archive(
    torch::optim::Optimizer& optimizer,
    const StateDict& archive,
    const NameOfParameter& name_of);

}  // namespace accelerate::detail
