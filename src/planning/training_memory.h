#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planning/model_tree.h"

namespace accelerate::detail {

/// Memory of training on one device, in bytes.
struct TrainingMemory {
  std::uint64_t weights = 0;
  std::uint64_t masters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  /// Bytes of the largest unit while it is unsharded.
  std::uint64_t gathered = 0;
  /// Buffers of what is on disk, which the members above do not count.
  std::uint64_t buffers = 0;
  /// Bytes on disk rather than in memory.
  std::uint64_t on_disk = 0;
  /// Unset if the shape of the model is not known.
  std::optional<std::uint64_t> activations;
  [[nodiscard]] std::uint64_t total() const {
    return weights + masters + gradients + optimizer + gathered + buffers +
        activations.value_or(0);
  }
};

/// Bytes of optimizer state per parameter. Throws ConfigError for an unknown
/// optimizer.
std::uint64_t optimizer_state_bytes(const std::string& optimizer);

struct TrainingPlan {
  std::string weights_dtype = "float32";  ///< or bfloat16, float16
  bool uses_16_bits = false;              ///< autocast, or weights of 16 bits
  std::string optimizer = "adamw";  ///< adam, sgd, momentum, adagrad, lomo
  std::int64_t batch_size = 1;      ///< on one device
  std::int64_t sequence_length = 0;
  std::int64_t num_shards = 1;
  bool recomputes_activations = false;
  /// Linear layers keep their inputs in 8 bits; with uses_16_bits.
  bool uses_fp8 = false;
  /// Numbers of devices that split each layer, the sequence, and the sequence
  /// of layers.
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;
  /// Micro-steps per optimizer step; a pipeline has several in flight.
  std::int64_t accumulation_steps = 1;
  /// Files keep masters, gradients and optimizer state; likewise weights.
  bool optimizer_is_on_disk = false;
  bool weights_are_on_disk = false;
  /// Memory of the buffers of each of the two files. Unset: as the library
  /// chooses it by the largest parameter.
  std::optional<std::uint64_t> disk_buffers = std::nullopt;
};

/// Estimates the memory of the device that needs most. Activations are counted
/// as in Korthikanti et al., Reducing Activation Recomputation in Large
/// Transformer Models (2022), section 4; a divided sequence counts as a shorter
/// one. Throws ConfigError for an unknown dtype or optimizer.
TrainingMemory training_memory(
    const ModelTree& model,
    std::uint64_t largest_layer,
    const TrainingPlan& plan);

/// Bytes that one device moves between its disk and memory per optimizer step.
struct DiskTraffic {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

/// Weights are read for each forward and backward, and written once; state is
/// read and written once. Every micro-step adds to the gradients, which the
/// first one only writes and the step only reads.
DiskTraffic disk_traffic(const ModelTree& model, const TrainingPlan& plan);

}  // namespace accelerate::detail
