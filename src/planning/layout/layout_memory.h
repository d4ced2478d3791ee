#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "planning/layout/layer_program.h"
#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// Counts the micro-batches whose activations each rank of a pipeline keeps,
/// according to its schedule. Caches the counts, since thousands of layouts
/// share a schedule.
class KeptMicroBatches {
 public:
  struct Counts {
    PipelineStagePlaces places;
    /// Per rank, counted per chunk.
    std::vector<int> most;
  };
  const Counts& of(const TrainingLayout& layout);

 private:
  std::map<std::tuple<PipelineScheduleKind, int, std::int64_t, int>, Counts>
      known_;
};

/// The memory of the rank that needs most. Counts activations as Korthikanti et
/// al. (2022), for attention that does not keep its weights.
LayoutMemory layout_memory(const LayoutCase& of, KeptMicroBatches& kept);

/// A lower bound on that memory that is cheap to compute.
double least_bytes(const LayoutCase& of);

}  // namespace accelerate::detail
