#pragma once

#include <cstdint>

namespace accelerate::detail {

/// The part of a session that a backward reads when LibTorch's own functions
/// are enough.
struct StepState {
  /// True if steps need only LibTorch's own functions: one process, windows of
  /// one micro-step, no strategies, no loss scaler, no clipping in optimizers,
  /// nothing to report, no profile. Determined at the end of a step; valid
  /// until a model is prepared or released, the window changes, a setting is
  /// noted, or a profile begins.
  bool is_direct = false;
  /// Number of backward passes that left gradients to be used.
  std::int64_t num_backwards = 0;
};

}  // namespace accelerate::detail
