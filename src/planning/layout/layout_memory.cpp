#include "planning/layout/layout_memory.h"

#include <algorithm>
#include <utility>

#include "modules/disk_buffers.h"
#include "planning/layout/step_time.h"
#include "planning/pipeline/simulation.h"
#include "planning/training_memory.h"

namespace accelerate::detail {

namespace {

constexpr double kFloatBytes = 4;

std::uint64_t whole(double bytes) {
  // Sums with other memory must fit into 64 bits.
  constexpr double kMost = 0x1p60;
  return static_cast<std::uint64_t>(std::min(std::max(bytes, 0.0), kMost));
}

// The layers on a rank, one range per chunk.
std::vector<LayerRange> layers_of(
    const std::vector<LayerRange>& stages,
    const PipelineStagePlaces& places,
    int rank) {
  std::vector<LayerRange> layers;
  for (int chunk = 0; chunk < places.num_chunks; ++chunk)
    layers.push_back(
        stages[static_cast<std::size_t>(places.stage(rank, chunk))]);
  return layers;
}

// `most_kept`: micro-batches, counted per chunk.
double activations_of(
    const LayoutCase& of,
    const std::vector<LayerRange>& chunks,
    int most_kept) {
  const double element = of.element_bytes(), tokens = of.tokens();
  double kept = 0, layer_peak = 0;
  bool has_head = false;
  for (const LayerRange& layers : chunks) {
    has_head = has_head || layers.has_head;
    for (std::int64_t i = layers.begin; i < layers.end; ++i) {
      const LayerCosts& layer = of.model.layer(i);
      const double whole_layer = layer.kept *
          (1 - layer.kept_divided + layer.kept_divided / of.layout.tensor) *
          tokens * element *
          (layer.has_experts ? of.options.expert_imbalance : 1);
      layer_peak = std::max(layer_peak, whole_layer);
      kept +=
          of.layout.recomputes ? layer.hidden * tokens * element : whole_layer;
    }
  }
  double bytes = kept / static_cast<double>(chunks.size()) * most_kept;
  // The layer that is recomputed, or whose gradients are computed.
  bytes += layer_peak;
  if (has_head) {
    // Logits, and fp32 tensors of the same shape in the loss and its gradient.
    bytes += tokens * static_cast<double>(of.model.shape.vocabulary) /
        of.layout.tensor * (element + 2 * kFloatBytes);
  }
  return bytes;
}

// `shards`: parameters of which the rank has the shard.
void move_to_disk(LayoutMemory& memory, const LayoutCase& of, double shards) {
  const double copies = of.element_bytes() < kFloatBytes ? 2 * shards : 0;
  memory.on_disk = std::exchange(memory.weights, 0) +
      std::exchange(memory.gradients, 0) +
      std::exchange(memory.optimizer_state, 0) + whole(copies);
  const TransformerShape& shape = of.model.shape;
  const std::int64_t largest =
      std::max(
          shape.vocabulary * shape.hidden_size,
          shape.intermediate_size * shape.hidden_size) /
      of.layout.tensor / of.layout.shard;
  // Parameters have buffers of their own.
  memory.gathered += std::min(
      2 * disk_buffer_bytes({.largest_shard = largest}), memory.on_disk);
}

LayoutMemory memory_of(
    const LayoutCase& of,
    const std::vector<LayerRange>& chunks,
    int most_kept) {
  const TrainingLayout& layout = of.layout;
  const bool is_wide = of.options.precision == FloatType::fp32;
  RankParameters parameters;
  double largest = 0;
  for (const LayerRange& layers : chunks) {
    const RankParameters own = rank_parameters(of, layers);
    parameters.dense += own.dense;
    parameters.experts += own.experts;
    for (std::int64_t i = layers.begin; i < layers.end; ++i) {
      const LayerCosts& layer = of.model.layer(i);
      largest = std::max(
          largest,
          layer.dense_parameters / layout.tensor +
              layer.expert_parameters / layout.tensor / layout.expert);
    }
    if (layers.has_embedding || layers.has_head) {
      largest =
          std::max(largest, of.model.embedding_parameters / layout.tensor);
    }
  }
  const double full = parameters.dense + parameters.experts;
  const double shards = layout.sharding == LayoutSharding::none
      ? full
      : parameters.dense / layout.shard +
          parameters.experts / of.expert_shard();
  const bool shards_gradients = of.reduces_always();
  LayoutMemory memory;
  // 16-bit parameters have fp32 masters beside them, since optimizers step in
  // fp32.
  const bool keeps_full = !of.gathers_parameters();
  memory.weights = whole((keeps_full ? full : 0) * of.element_bytes());
  const double masters = is_wide && keeps_full ? 0 : kFloatBytes;
  memory.optimizer_state = whole(
      shards *
      (masters +
       static_cast<double>(optimizer_state_bytes(of.options.optimizer))));
  if (of.options.optimizer != "lomo") {
    memory.gradients = whole(
        shards_gradients ? shards * kFloatBytes : full * of.element_bytes());
  }
  if (of.gathers_parameters()) {
    memory.gathered = whole(3 * largest * of.element_bytes());
  } else if (shards_gradients) {
    memory.gathered = whole(2 * largest * of.element_bytes());
  }
  memory.activations = whole(activations_of(of, chunks, most_kept));
  if (layout.on_disk) move_to_disk(memory, of, shards);
  return memory;
}

}  // namespace

double least_bytes(const LayoutCase& of) {
  const TrainingLayout& layout = of.layout;
  const double stages = layout.pipeline;
  const TransformerShape& shape = of.model.shape;
  const auto num_dense = static_cast<double>(
      shape.num_experts > 0 ? shape.num_dense_layers : shape.num_layers);
  const double num_expert = static_cast<double>(shape.num_layers) - num_dense;
  const double dense = (num_dense * of.model.dense_layer.dense_parameters +
                        num_expert * of.model.expert_layer.dense_parameters) /
      stages / layout.tensor;
  const double experts = num_expert * of.model.expert_layer.expert_parameters /
      stages / layout.tensor / layout.expert;
  const double full = dense + experts;
  const double shards = layout.sharding == LayoutSharding::none
      ? full
      : dense / layout.shard + experts / of.expert_shard();
  const double state =
      static_cast<double>(optimizer_state_bytes(of.options.optimizer));
  return (of.gathers_parameters() ? 0 : full * of.element_bytes()) +
      (layout.on_disk ? 0 : shards * state) +
      (layout.recomputes ? 1 : 2) * of.tokens() *
      static_cast<double>(shape.hidden_size) * of.element_bytes() *
      static_cast<double>(shape.num_layers) / stages;
}

const KeptMicroBatches::Counts& KeptMicroBatches::of(
    const TrainingLayout& layout) {
  const auto [place, is_new] = known_.try_emplace(
      {layout.schedule,
       layout.pipeline,
       layout.num_micro_batches,
       layout.num_chunks});
  if (!is_new) return place->second;
  // Without a pipeline, each micro-batch ends before the next one begins.
  if (layout.pipeline == 1) {
    place->second.most = {1};
    return place->second;
  }
  const PipelineSchedule schedule = make_pipeline_schedule(
      layout.schedule,
      layout.pipeline,
      static_cast<int>(layout.num_micro_batches),
      layout.num_chunks);
  place->second = {schedule, most_kept(schedule)};
  return place->second;
}

LayoutMemory layout_memory(const LayoutCase& of, KeptMicroBatches& kept) {
  const std::vector<LayerRange> stages = stages_of(of);
  const KeptMicroBatches::Counts& micro_batches = kept.of(of.layout);
  LayoutMemory most;
  for (int rank = 0; rank < of.layout.pipeline; ++rank) {
    const LayoutMemory memory = memory_of(
        of,
        layers_of(stages, micro_batches.places, rank),
        micro_batches.most[static_cast<std::size_t>(rank)]);
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

}  // namespace accelerate::detail
