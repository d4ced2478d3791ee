#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/pipeline.h>

#include "pipeline/executor.h"
#include "pipeline/stages.h"
#include "pipeline/tied_gradients.h"
#include "planning/pipeline/schedule.h"
#include "train/session/session.h"

namespace accelerate {

/// A pipeline as seen by one of its ranks.
struct Pipeline::State {
  PipelineOptions options;
  PipelineScheduleKind kind;
  detail::PipelineStagePlaces places;
  int num_micro_batches = 1;
  detail::PipelineStages stages;
  Model<torch::nn::Module> model;
  detail::PipelineExecutor executor;
  detail::TiedGradients tied;
  /// Schedules by number of micro-batches.
  std::map<int, detail::PipelineSchedule> schedules = {};
  /// Chunks whose last backward of the current step has begun.
  std::set<int> completed_chunks = {};

  [[nodiscard]] detail::PreparedModel& prepared() const {
    return *model.prepared();
  }
  [[nodiscard]] bool is_last() const {
    return executor.rank() == places.last_rank();
  }

  /// The schedule for a batch of `rows` samples.
  const detail::PipelineSchedule& schedule_for(std::int64_t rows);

  /// Computes a chunk of this rank's layers.
  detail::PipelineValue forward(int chunk, const detail::PipelineValue& inputs);

  /// The losses of a chunk's experts in the forward that just ended; undefined
  /// if it has none.
  [[nodiscard]] at::Tensor take_expert_losses(int chunk) const;

  /// Runs one autograd pass of a micro-batch.
  void backward(
      const detail::StagePass& pass,
      const std::function<void()>& body);

  /// Called before a chunk's last backward of the step; returns the parameters
  /// whose gradients it completes.
  [[nodiscard]] std::vector<at::Tensor> completed_by(int chunk);

  /// Ends a step once all micro-batches have left their gradients: averages
  /// them over the ranks that read other data if the window ends.
  void end_backwards();

  /// Sends the last rank's losses to all ranks, as numbers.
  void share_losses(std::vector<at::Tensor>& losses, std::size_t count);
};

}  // namespace accelerate
