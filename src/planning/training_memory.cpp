#include "planning/training_memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "modules/disk_buffers.h"

namespace accelerate::detail {

namespace {

// Sizes of layers are given in float32.
constexpr std::uint64_t kFloat32Bytes = 4;

std::uint64_t bytes_of_weights(const std::string& dtype) {
  if (dtype == "float32") return 4;
  if (dtype == "bfloat16" || dtype == "float16") return 2;
  throw ConfigError(format(
      "[estimate-memory] weights must be trained as float32, bfloat16 or "
      "float16, but the dtype is \"{}\"",
      dtype));
}

std::uint64_t activations_of(
    const TransformerShape& shape,
    const TrainingPlan& plan) {
  const double s = std::ceil(
      static_cast<double>(plan.sequence_length) /
      static_cast<double>(plan.context));
  const double b = static_cast<double>(plan.batch_size);
  const double h = static_cast<double>(shape.hidden_size);
  const double heads = static_cast<double>(shape.num_heads);
  const double t = static_cast<double>(plan.tensor);
  const double layers = std::ceil(
      static_cast<double>(shape.num_layers) /
      static_cast<double>(plan.pipeline));
  // The paper counts 16 bits per activation and one byte per dropout mask.
  // Inputs of linear layers take 4 of the 10 bytes, and 10 of the 24.
  const double wide = plan.uses_16_bits ? 1 : 2;
  const double outside = plan.uses_fp8 ? 8 : 10;
  const double inside = plan.uses_fp8 ? 19 : 24;
  const double layer =
      s * b * h * (outside + (inside + 5 * heads * s / h) / t) * wide;
  const auto kept = [&](double micro_steps) {
    return plan.recomputes_activations
        ? 2 * wide * s * b * h * layers * micro_steps + layer
        : layer * layers * micro_steps;
  };
  const double logits = s * b * static_cast<double>(shape.vocabulary) * 4 / t;
  // The first stage begins one micro-step per stage before the first one
  // returns (1F1B); the last stage has the logits of one micro-step.
  const double in_flight =
      static_cast<double>(std::min(plan.pipeline, plan.accumulation_steps));
  const double most = plan.pipeline == 1
      ? kept(1) + logits
      : std::max(kept(in_flight), kept(1) + logits);
  // Sums with other memory must fit into 64 bits.
  constexpr double kMost = 0x1p62;
  return static_cast<std::uint64_t>(std::min(most, kMost));
}

// Number of parameters on the device that has most: one with an embedding if
// the layers are divided.
std::uint64_t num_parameters_of(
    const ModelTree& model,
    const TrainingPlan& plan) {
  const auto divided = [](std::uint64_t number, std::int64_t by) {
    const auto parts = static_cast<std::uint64_t>(by);
    return (number + parts - 1) / parts;
  };
  std::uint64_t number = model.num_parameters;
  if (plan.pipeline > 1 && model.transformer) {
    const std::uint64_t embedding = std::min(
        number,
        static_cast<std::uint64_t>(model.transformer->vocabulary) *
            static_cast<std::uint64_t>(model.transformer->hidden_size));
    number = divided(number - embedding, plan.pipeline) + embedding;
  } else {
    number = divided(number, plan.pipeline);
  }
  return divided(number, plan.tensor);
}

std::int64_t largest_parameter(const ModuleNode& module) {
  std::int64_t largest = 0;
  for (const ModuleTensor& parameter : module.parameters)
    largest = std::max(largest, parameter.num_elements);
  for (const ModuleNode& child : module.children)
    largest = std::max(largest, largest_parameter(child));
  return largest;
}

std::uint64_t buffers_of_file(
    const ModuleNode& root,
    const TrainingPlan& plan) {
  return plan.disk_buffers.value_or(disk_buffer_bytes(
      {.largest_shard =
           largest_parameter(root) / (plan.num_shards * plan.tensor)}));
}

}  // namespace

std::uint64_t optimizer_state_bytes(const std::string& optimizer) {
  static const std::map<std::string, std::uint64_t> known{
      {"adamw", 8},
      {"adam", 8},
      {"momentum", 4},
      {"adagrad", 4},
      {"sgd", 0},
      {"lomo", 0}};
  const auto found = known.find(optimizer);
  if (found == known.end()) {
    throw ConfigError(format(
        "[estimate-memory] the optimizer must be adamw, adam, momentum, "
        "adagrad, sgd or lomo, but is \"{}\"",
        optimizer));
  }
  return found->second;
}

TrainingMemory training_memory(
    const ModelTree& model,
    std::uint64_t largest_layer,
    const TrainingPlan& plan) {
  const std::uint64_t wide = bytes_of_weights(plan.weights_dtype);
  const auto shards = static_cast<std::uint64_t>(plan.num_shards);
  const auto per_shard = [&](std::uint64_t bytes) {
    return (bytes + shards - 1) / shards;
  };
  const std::uint64_t num_parameters = num_parameters_of(model, plan);
  TrainingMemory memory;
  memory.weights = per_shard(num_parameters * wide);
  memory.masters = wide == 4 ? 0 : per_shard(num_parameters * 4);
  // Lomo steps during backward, one gradient at a time.
  memory.gradients =
      plan.optimizer == "lomo" ? 0 : per_shard(num_parameters * wide);
  memory.optimizer =
      per_shard(num_parameters * optimizer_state_bytes(plan.optimizer));
  if (shards > 1 || plan.weights_are_on_disk) {
    // Parameters of the current and the next unit, and the current gradient.
    memory.gathered = 3 * (largest_layer / kFloat32Bytes) * wide /
        static_cast<std::uint64_t>(plan.tensor);
  }
  if (model.transformer && plan.sequence_length > 0) {
    memory.activations = activations_of(*model.transformer, plan);
  }
  const auto move_to_disk = [&](std::uint64_t bytes) {
    memory.on_disk += bytes;
    memory.buffers += std::min(buffers_of_file(model.root, plan), bytes);
  };
  if (plan.weights_are_on_disk) move_to_disk(std::exchange(memory.weights, 0));
  if (plan.optimizer_is_on_disk) {
    move_to_disk(
        std::exchange(memory.masters, 0) + std::exchange(memory.gradients, 0) +
        std::exchange(memory.optimizer, 0));
  }
  return memory;
}

DiskTraffic disk_traffic(const ModelTree& model, const TrainingPlan& plan) {
  TrainingPlan in_memory = plan;
  in_memory.weights_are_on_disk = false;
  in_memory.optimizer_is_on_disk = false;
  const TrainingMemory memory = training_memory(model, 0, in_memory);
  const auto micro_steps = static_cast<std::uint64_t>(plan.accumulation_steps);
  DiskTraffic traffic;
  if (plan.weights_are_on_disk) {
    // The step changes masters where there are any, else the weights.
    traffic.read += memory.weights * 2 * micro_steps +
        (memory.masters > 0 ? 0 : memory.weights);
    traffic.written += memory.weights;
  }
  if (plan.optimizer_is_on_disk) {
    const std::uint64_t bytes =
        memory.masters + memory.optimizer + memory.gradients * micro_steps;
    traffic.read += bytes;
    traffic.written += bytes;
  }
  return traffic;
}

}  // namespace accelerate::detail
