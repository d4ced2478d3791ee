#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::detail {

/// The sizes of a program's batches.
struct DeepSpeedBatches {
  /// Samples per rank and micro-step, one for each prepared loader.
  std::vector<std::int64_t> micro_batches;
  std::int64_t gradient_accumulation_steps = 1;
  std::int64_t num_ranks = 1;
};

/// Returns the DeepSpeed configuration (JSON) with "auto" replaced in
/// train_batch_size, train_micro_batch_size_per_gpu and
/// gradient_accumulation_steps, using the smallest loader's batches as
/// Accelerate does. Throws ConfigError if the configuration's sizes match no
/// loader, or contradict each other.
std::string fill_batch_sizes(
    const std::string& config,
    const DeepSpeedBatches& batches);

}  // namespace accelerate::detail
