#pragma once

#include <string>
#include <vector>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// Durations of the parts of a pipeline, in any unit; equal for all stages
/// unless given per stage.
struct PipelineTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  /// Seconds from the end of a stage to the start of the next one on another
  /// rank.
  double transfer = 0;
  /// Factors per stage; empty: 1 for all.
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
  /// When the last rank finishes.
  double time = 0;
  /// The share of all ranks' time in which they do not compute.
  double bubble = 0;
  /// most_kept() of the schedule.
  std::vector<int> most_kept;
  /// Why the schedule cannot complete; empty if it does.
  std::string deadlock;
};

/// Per rank, the maximum number of micro-batches, counted per chunk, whose
/// activations it keeps at once, from the forward to the end of the whole
/// backward.
std::vector<int> most_kept(const PipelineSchedule& schedule);

/// Amounts that a stage keeps per micro-batch, in any unit.
struct PipelineKept {
  /// The time from the forward to the backward, or to the gradient of the
  /// input.
  double activations = 1;
  /// The time from the gradient of the input to the gradients of weights, where
  /// a schedule postpones them.
  double for_weights = 1;
};

/// Per rank, the maximum amount that it keeps at once. `kept`: per stage.
std::vector<double> most_kept(
    const PipelineSchedule& schedule,
    const std::vector<PipelineKept>& kept);

/// Replays a schedule with given times: every action begins when its rank and
/// its inputs are ready.
PipelineSimulation simulate_pipeline(
    const PipelineSchedule& schedule,
    const PipelineTimes& times);

/// Draws one line per rank, with time from left to right, where each forward
/// and each half of a backward takes one unit: F3 is the forward of micro-batch
/// 3, B3 its backward, I3 and W3 the gradients of its input and of weights.
/// Chunks are letters: F3b. A schedule that cannot complete is drawn as far as
/// it gets.
std::string draw_pipeline(const PipelineSchedule& schedule);

}  // namespace accelerate::detail
