#pragma once

#include <accelerate/state_dict.h>

#include "params/optimizer_state.h"

namespace accelerate::detail {

/// Returns what the optimizer's own save() writes, with names in place of the
/// parameter addresses that LibTorch writes; for unknown optimizer classes.
/// Throws ConfigError if the optimizer has state but its save() writes nothing.
StateDict read_archive(
    const torch::optim::Optimizer& optimizer,
    const NameOfParameter& name_of);

/// Passes such an archive to the optimizer's own load().
void write_archive(
    torch::optim::Optimizer& optimizer,
    const StateDict& archive,
    const NameOfParameter& name_of);

}  // namespace accelerate::detail
