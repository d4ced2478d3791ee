#pragma once

#include <string>
#include <vector>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// How long the parts of a pipeline take, in any unit; equal for all stages
/// unless given per stage.
struct PipelineTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  /// From the end of a stage to the beginning of the next one on another rank.
  double transfer = 0;
  /// Factors per stage; empty for 1.
  std::vector<double> stage_factors = {};
};

/// When a rank computes an action.
struct PipelineSpan {
  PipelineAction action;
  double begin = 0;
  double end = 0;
};

struct PipelineSimulation {
  /// Per rank, in order.
  std::vector<std::vector<PipelineSpan>> ranks;
  /// When the last rank has finished.
  double time = 0;
  /// The share of `time`, of all ranks together, in which they compute nothing.
  double bubble = 0;
  /// most_kept() of the schedule.
  std::vector<int> most_kept;
  /// Why the schedule cannot end; empty if it does.
  std::string deadlock;
};

/// Per rank, the most micro-batches, counted per chunk, whose activations it
/// keeps at once: from the forward to the end of its whole backward.
std::vector<int> most_kept(const PipelineSchedule& schedule);

/// What a stage keeps of a micro-batch, in any unit.
struct PipelineKept {
  /// From the forward to the backward, or to the gradient of the input.
  double activations = 1;
  /// From the gradient of the input to those of weights, where a schedule
  /// postpones them.
  double for_weights = 1;
};

/// Per rank, the most that it keeps at once. `kept`: per stage.
std::vector<double> most_kept(
    const PipelineSchedule& schedule,
    const std::vector<PipelineKept>& kept);

/// Replays a schedule with given times: every action begins when its rank and
/// what it needs are ready.
PipelineSimulation simulate_pipeline(
    const PipelineSchedule& schedule,
    const PipelineTimes& times);

/// One line per rank, from left to right in time, where each forward and each
/// half of a backward takes one unit: F3 is the forward of micro-batch 3, B3 its
/// backward, I3 and W3 the gradients of its input and of weights. Chunks are
/// letters: F3b. A run that cannot end is drawn as far as it comes.
std::string draw_pipeline(const PipelineSchedule& schedule);

}  // namespace accelerate::detail
