#include "train/pipeline/division.h"

#include <string>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "comm/mesh.h"
#include "pipeline/split.h"
#include "pipeline/stages.h"
#include "train/session/session.h"

namespace accelerate::detail {

namespace {

std::vector<std::string> names_of(const std::vector<PipelineLayer>& layers) {
  std::vector<std::string> names;
  for (const auto& layer : layers) names.push_back(layer.name);
  return names;
}

// The number of chunks per rank with the requested number of the model's
// repeated layers each; the last rank may have a different number of layers.
// Throws ConfigError if the layers cannot be split that way.
int chunks_of(
    const std::vector<PipelineLayer>& layers,
    const PipelineRequest& request,
    int num_ranks) {
  const auto count = static_cast<int>(num_repeated_layers(layers));
  const int last = request.layers_of_last_rank.value_or(0);
  const int ranks = request.layers_of_last_rank ? num_ranks - 1 : num_ranks;
  const int of_chunks = *request.layers_per_chunk * ranks;
  if (of_chunks > 0 && count > last && (count - last) % of_chunks == 0)
    return (count - last) / of_chunks;
  throw ConfigError(format(
      "[pipeline] num_layers_per_virtual_pipeline_stage is {}, but the model "
      "has {} layers of one class, which {} ranks cannot divide into stages of "
      "so many{}; set another number, or PipelineOptions::num_chunks",
      *request.layers_per_chunk,
      count,
      num_ranks,
      request.layers_of_last_rank ? format(" beside {} on the last one", last)
                                  : std::string()));
}

const PipelineRequest& request_of(const Accelerator& accelerator) {
  return AcceleratorAccess::session(accelerator)
      .layout.plan_request.training.pipeline;
}

}  // namespace

PipelineOptions complete(
    PipelineOptions options,
    const Accelerator& accelerator,
    const std::vector<PipelineLayer>& layers) {
  using Kind = PipelineScheduleKind;
  const PipelineRequest& request = request_of(accelerator);
  if (!options.num_micro_batches)
    options.num_micro_batches = request.num_micro_batches;
  const Kind kind = options.schedule;
  const bool may_interleave =
      kind == Kind::one_f_one_b || !fixed_chunks_of(kind);
  if (!request.layers_per_chunk || options.num_chunks || !may_interleave)
    return options;
  options.num_chunks =
      chunks_of(layers, request, accelerator.mesh().degree(Axis::pipeline));
  if (kind == Kind::one_f_one_b && *options.num_chunks > 1)
    options.schedule = Kind::interleaved_1f1b;
  return options;
}

std::vector<std::size_t> begins_of(
    const PipelineOptions& options,
    const Accelerator& accelerator,
    const std::vector<PipelineLayer>& layers,
    const PipelineSchedule& schedule) {
  const PipelineRequest& request = request_of(accelerator);
  if (request.layers_of_last_rank && options.split_points.empty() &&
      options.costs.empty()) {
    return begins_with_last_rank(
        layers, schedule, *request.layers_of_last_rank);
  }
  return divide_layers(
      names_of(layers),
      options.split_points,
      options.costs.empty() ? parameter_bytes(layers) : options.costs,
      schedule.num_stages());
}

PipelineSchedule schedule_of(const PipelineOptions& options, int num_ranks) {
  const PipelineScheduleKind kind = options.schedule;
  const int num_chunks =
      options.num_chunks.value_or(fixed_chunks_of(kind).value_or(1));
  const bool needs_many = kind == PipelineScheduleKind::dual_pipe_v;
  const int count = options.num_micro_batches.value_or(
      needs_many ? num_ranks * num_chunks : num_ranks);
  require_at_least("pipeline", "num_micro_batches", count, 1);
  return make_pipeline_schedule(kind, num_ranks, count, num_chunks);
}

}  // namespace accelerate::detail
