#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/memory_plan.h>

#include "train/plan/step_trace.h"

namespace accelerate::detail {

/// What a simulated step does besides the trace.
struct StepSettings {
  /// Bytes of optimizer state per trained element.
  std::int64_t state_bytes = 8;
  /// Temporaries of an optimizer step, each the size of the parameter.
  std::int64_t num_temporaries = 2;
  /// Gradients are views of the buckets (ReplicateOptions).
  bool gradient_as_bucket_view = false;
  /// Freed blocks of sharded models are kept (keep_freed_blocks).
  bool keeps_freed_blocks = true;
  /// Sharded models compute with parameters in 16 bits where the case says so;
  /// else autocast alone casts them.
  bool computes_in_16_bits = false;
  /// Bytes of each of a rank's two slots, through which messages go piece by
  /// piece. Buckets of as much or more are averaged where they lie instead.
  std::int64_t slot_bytes = 0;
  /// Free ranges of the C library's heap before the model is made.
  std::vector<std::int64_t> heap_holes = {};
};

/// The peak of a rank in a step that is not the first, when the order of units
/// is known and the optimizer has its state: plays `trace` and does with units,
/// gradients and buckets what the strategies do.
MemoryRow simulate_step(
    const PlannedModel& model,
    const StepTrace& trace,
    const MemoryCase& at,
    const StepSettings& settings);

}  // namespace accelerate::detail
