#pragma once

#include <memory>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// Gives bf16 and fp16 parameters fp32 master weights (their rows' `local`), on
/// which optimizers step; each step is rounded into the model. Gradients move
/// to the masters once complete, so they accumulate over a window in the
/// model's dtype.
std::unique_ptr<Strategy> make_master_weights();

}  // namespace accelerate::detail
