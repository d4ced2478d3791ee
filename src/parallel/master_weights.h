#pragma once

#include <memory>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// Gives parameters in bf16 or fp16 fp32 masters, their rows' `local`, on which
/// optimizers step; each step is rounded into the model. Gradients move to the
/// masters when they are complete, so they accumulate over a window in the
/// model's dtype.
std::unique_ptr<Strategy> make_master_weights();

}  // namespace accelerate::detail
