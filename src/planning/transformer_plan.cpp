#include "planning/transformer_plan.h"

#include <memory>
#include <utility>

#include <accelerate/error.h>

namespace accelerate::detail {

namespace {

MemoryRow row_of_case(
    const ModelTree& model,
    std::uint64_t largest_layer,
    TrainingPlan training,
    const MemoryCase& at) {
  training.uses_16_bits =
      at.precision != FloatType::fp32 || training.weights_dtype != "float32";
  training.batch_size = at.micro_batch;
  training.recomputes_activations = at.recomputes;
  training.accumulation_steps = at.accumulation_steps;
  training.uses_fp8 = at.uses_fp8;
  training.tensor = at.tensor;
  training.context = at.context;
  training.pipeline = at.pipeline;
  training.num_shards = 1;
  const TrainingMemory whole = training_memory(model, largest_layer, training);
  training.num_shards = at.num_shards;
  const TrainingMemory shard = training_memory(model, largest_layer, training);
  MemoryRow row{
      .weights = whole.weights,
      .gradients = shard.gradients,
      .optimizer_state = shard.optimizer + shard.masters,
      .activations = whole.activations.value_or(0)};
  switch (at.split) {
    case MemorySplit::replicated:
      row.buckets =
          at.num_ranks > at.tensor * at.pipeline ? whole.gradients : 0;
      break;
    case MemorySplit::zero_1:
      if (at.accumulation_steps > 1) row.gradients = whole.gradients;
      [[fallthrough]];
    case MemorySplit::zero_2:
      // Gradients being computed and gradients in flight: two units, where a
      // model with sharded parameters has three.
      row.units = shard.gathered / 3 * 2;
      break;
    case MemorySplit::full_shard:
    case MemorySplit::hybrid_shard:
      row.weights = shard.weights;
      row.units = shard.gathered;
      break;
  }
  return row;
}

}  // namespace

MemoryPlan plan_transformer(
    const ModelTree& model,
    std::uint64_t largest_layer,
    const TrainingPlan& training,
    MemoryPlan::Facts facts) {
  if (!model.transformer) {
    throw ConfigError(
        "[estimate-memory] --fits needs the shape of a transformer, which "
        "activations depend on, but there is no config.json with it; give a "
        "directory that has one, or plan in the program "
        "(plan_memory())");
  }
  if (training.sequence_length < 1) {
    throw ConfigError(
        "[estimate-memory] --fits needs --sequence_length, the tokens per "
        "sample");
  }
  const auto shared = std::make_shared<const ModelTree>(model);
  facts.batch_size = training.batch_size;
  facts.notes = {
      "Activations: computed from the shape (Korthikanti et al., 2022)."};
  return {
      std::move(facts),
      [shared, largest_layer, training](const MemoryCase& at) {
        return row_of_case(*shared, largest_layer, training, at);
      }};
}

}  // namespace accelerate::detail
