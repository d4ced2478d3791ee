#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "planning/layout/layer_program.h"
#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// The micro-batches whose activations the ranks of a pipeline keep, counted in
/// its schedule. Remembers the schedules that it was asked for, which thousands
/// of layouts share.
class KeptMicroBatches {
 public:
  struct Kept {
    PipelineStagePlaces places;
    /// Per rank, counted per chunk.
    std::vector<int> most;
  };
  const Kept& of(const TrainingLayout& layout);

 private:
  std::map<std::tuple<std::string, int, std::int64_t, int>, Kept> known_;
};

/// The memory of the rank that needs most. Activations as Korthikanti et al.
/// (2022) count them, with attention that does not keep its weights.
LayoutMemory layout_memory(const LayoutCase& of, KeptMicroBatches& kept);

/// A lower bound of it, found in no time.
double least_bytes(const LayoutCase& of);

}  // namespace accelerate::detail
