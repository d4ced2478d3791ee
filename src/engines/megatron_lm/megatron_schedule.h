#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <accelerate/megatron_lm.h>

namespace accelerate::detail {

/// Lengths that Megatron-LM's options may leave to the program; 0: unknown.
struct MegatronScheduleLengths {
  std::int64_t train_iters = 0;
  std::int64_t warmup_iters = 0;
  std::int64_t global_batch_size = 0;
};

/// A schedule as in Megatron-LM's OptimizerParamScheduler. All lengths are in
/// samples if the batch size is known, otherwise in iterations.
struct MegatronSchedule {
  /// What each optimizer step adds to the position in the schedule.
  double increment = 1;
  double warmup = 0;
  double decay = 0;
  std::string decay_style = "linear";
  double warmup_init = 0;
  double min_lr = 0;
  /// Length of the annealing at the end of a "WSD" schedule, and its style.
  double wsd_decay = 0;
  std::string wsd_style = "exponential";

  /// How weight decay changes over `weight_decay_length`; unset if it does not.
  std::optional<double> start_weight_decay = std::nullopt;
  double end_weight_decay = 0;
  double weight_decay_length = 0;
  std::string weight_decay_style = "constant";

  /// The learning rate, after `step` optimizer steps, of a group whose highest
  /// rate is `max_lr`.
  [[nodiscard]] double lr_at(std::int64_t step, double max_lr) const;
  /// The weight decay at that step; unset if the schedule does not change it.
  [[nodiscard]] std::optional<double> weight_decay_at(std::int64_t step) const;
};

/// Throws ConfigError with all complaints for what Megatron-LM would refuse.
MegatronSchedule read_megatron_schedule(
    const MegatronLMOptions& options,
    const MegatronScheduleLengths& lengths);

}  // namespace accelerate::detail
