#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <accelerate/memory_plan.h>

#include "modules/module_tree.h"
#include "modules/wrap_policy.h"
#include "planning/model_tree.h"
#include "planning/training_memory.h"

namespace accelerate::detail {

/// The largest layers: modules without children, modules of the classes that
/// `no_split` names, and the root's own parameters.
struct LargestLayers {
  std::uint64_t num_bytes = 0;
  std::vector<std::string> names;
};
LargestLayers largest_layers(
    const ModuleNode& root,
    const WrapPolicy& no_split);

/// Memory of training with Adam in bytes, by Accelerate's rule of thumb;
/// negative if this dtype is not trainable.
struct TrainingEstimate {
  std::int64_t model = -1;
  std::int64_t gradients = -1;
  std::int64_t optimizer = -1;
  std::int64_t step = -1;
};

/// A row of the table that `estimate-memory` prints.
struct MemoryEstimate {
  std::string dtype;
  double largest_layer = 0;
  double total = 0;
  TrainingEstimate training;
};

/// Estimates memory in `dtype` from sizes in float32. `dtype` is float32,
/// float16, bfloat16, int8 or int4; throws ConfigError for others.
MemoryEstimate estimate_memory(
    const std::string& dtype,
    std::uint64_t largest_layer,
    std::uint64_t total);

/// Formats the table as Accelerate prints it, in a frame.
std::string memory_table(
    const std::string& model,
    const std::vector<MemoryEstimate>& estimates);

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
