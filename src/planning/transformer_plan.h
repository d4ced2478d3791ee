#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/memory_plan.h>

#include "planning/model_tree.h"
#include "planning/training_memory.h"

namespace accelerate::detail {

/// The plan of a transformer of which only the shape is known, by the formulas
/// of training_memory(). Of `training`, the split, the precision and the
/// micro-batch are those of each case; its batch_size is per rank and optimizer
/// step. Batch size and notes of `facts` are filled in. Throws ConfigError if
/// the shape is not known or sequence_length is 0.
MemoryPlan plan_transformer(
    const ModelTree& model,
    std::uint64_t largest_layer,
    const TrainingPlan& training,
    MemoryPlan::Facts facts);

}  // namespace accelerate::detail
