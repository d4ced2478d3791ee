#pragma once

#include <memory>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// Parameters in bf16 or fp16 get fp32 copies, their rows' `local`, on which
/// optimizers step; each step is rounded into the model. Gradients move to the
/// copies when they are complete, so what adds up over a window does so in the
/// model's dtype.
std::unique_ptr<Strategy> make_master_weights();

}  // namespace accelerate::detail
