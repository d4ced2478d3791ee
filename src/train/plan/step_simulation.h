#pragma once

#include <cstdint>

#include <accelerate/memory_plan.h>

#include "train/plan/step_trace.h"

namespace accelerate::detail {

/// Settings of a simulated step that its trace does not determine.
struct StepSettings {
  /// Bytes of optimizer state per trained element.
  std::int64_t state_bytes = 8;
  /// Temporaries of an optimizer step, each the size of the parameter.
  std::int64_t num_temporaries = 2;
  /// Gradients are views of the buckets (ReplicateOptions).
  bool gradient_as_bucket_view = false;
  /// Freed blocks of sharded models are kept (keep_freed_blocks).
  bool keeps_freed_blocks = true;
  /// Sharded models compute with 16-bit parameters if the case asks for 16
  /// bits; otherwise only autocast casts them.
  bool computes_in_16_bits = false;
  /// Size of each of a rank's two slots, through which messages pass piece by
  /// piece. Buckets of this size or more are averaged in place instead.
  std::int64_t slot_bytes = 0;
  /// What files keep of what is sharded.
  KeptOnDisk on_disk = KeptOnDisk::nothing;
};

/// Returns a rank's peak in a step after the first, when the order of units is
/// known and the optimizer has its state. Replays `trace` and handles units,
/// gradients and buckets as the strategies do.
MemoryRow simulate_step(
    const PlannedModel& model,
    const StepTrace& trace,
    const MemoryCase& at,
    const StepSettings& settings);

}  // namespace accelerate::detail
