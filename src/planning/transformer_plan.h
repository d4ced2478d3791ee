#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/memory_plan.h>

#include "planning/model_tree.h"
#include "planning/training_memory.h"

namespace accelerate::detail {

/// Plans the memory of a transformer from its shape alone, with the formulas of
/// training_memory(). Each case overrides the split, precision and micro-batch
/// of `training`, whose batch_size is per rank and optimizer step. Fills in the
/// batch size and notes of `facts`. Throws ConfigError if the shape is not
/// known or sequence_length is 0.
MemoryPlan plan_transformer(
    const ModelTree& model,
    std::uint64_t largest_layer,
    const TrainingPlan& training,
    MemoryPlan::Facts facts);

}  // namespace accelerate::detail
