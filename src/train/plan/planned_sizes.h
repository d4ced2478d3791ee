#pragma once

#include <cstdint>

#include "train/plan/step_simulation.h"

namespace accelerate::detail {

/// Sizes of what a rank holds and sends in a case. References its arguments.
class PlannedSizes {
 public:
  PlannedSizes(
      const PlannedModel& model,
      const MemoryCase& at,
      const StepSettings& settings);

  [[nodiscard]] bool is_sharded() const { return is_sharded_; }
  [[nodiscard]] bool shards_parameters() const { return shards_parameters_; }
  [[nodiscard]] bool has_buckets() const {
    return !is_sharded_ && at_.num_ranks > 1;
  }
  /// ZeRO-1 and replicas keep full gradients between micro-steps.
  [[nodiscard]] bool keeps_full_gradients() const {
    return !is_sharded_ || at_.split == MemorySplit::zero_1;
  }

  [[nodiscard]] bool is_shard(const PlannedParameter& parameter) const {
    return is_sharded_ && parameter.unit != PlannedParameter::kUnsharded;
  }
  /// Files keep the shard; likewise its gradient and optimizer state.
  [[nodiscard]] bool is_on_disk(const PlannedParameter& parameter) const {
    return is_shard(parameter) && shards_parameters_ &&
        keeps(KeptOnDisk::parameters);
  }
  [[nodiscard]] bool has_state_on_disk(
      const PlannedParameter& parameter) const {
    return is_shard(parameter) && keeps(KeptOnDisk::optimizer);
  }
  /// Bytes of the rank's files, and of the buffers of both.
  struct Files {
    std::int64_t bytes = 0;
    std::int64_t buffers = 0;
  };
  [[nodiscard]] Files files() const;

  /// Number of elements on the rank with the most rows.
  [[nodiscard]] std::int64_t local_elements(
      const PlannedParameter& parameter) const;
  [[nodiscard]] std::int64_t local_element_bytes(
      const PlannedParameter& parameter) const;
  [[nodiscard]] std::int64_t local_bytes(
      const PlannedParameter& parameter) const {
    return local_elements(parameter) * local_element_bytes(parameter);
  }
  /// Bytes per element of the full parameter and of its gradient.
  [[nodiscard]] std::int64_t full_element_bytes(
      const PlannedParameter& parameter) const;
  [[nodiscard]] std::int64_t full_bytes(
      const PlannedParameter& parameter) const {
    return parameter.num_elements * full_element_bytes(parameter);
  }
  [[nodiscard]] bool travels_alone(const PlannedParameter& parameter) const;
  [[nodiscard]] std::int64_t local_gradients() const;

  /// This rank's part of the shared memory through which messages pass: its two
  /// slots, and an equal share of those of the first rank, through which the
  /// model's initial values come.
  [[nodiscard]] std::int64_t slots() const;

 private:
  [[nodiscard]] bool keeps(KeptOnDisk what) const {
    return settings_.on_disk == what || settings_.on_disk == KeptOnDisk::all;
  }
  [[nodiscard]] std::int64_t largest_message() const;

  const PlannedModel& model_;
  const MemoryCase& at_;
  const StepSettings& settings_;
  bool shards_parameters_;
  bool is_sharded_;
  // Sharded models compute with 16-bit parameters, whatever is sharded, and
  // step on fp32 shards.
  bool casts_;
};

}  // namespace accelerate::detail
