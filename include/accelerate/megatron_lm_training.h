#pragma once

#include <cstdint>
#include <memory>

#include <accelerate/export.h>
#include <accelerate/megatron_lm.h>
#include <accelerate/schedulers.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace accelerate {

/// Lengths of a schedule that Megatron-LM's settings leave open.
struct MegatronLMDummyScheduler {
  /// Number of steps of the training and of its warm-up, counted as one process
  /// with all the data would: both are divided by `num_data_parallel_ranks`,
  /// and overridden by `train_iters` and `lr_warmup_iters`.
  std::int64_t total_num_steps = 0;
  /// Number of steps of the warm-up, counted alike.
  std::int64_t warmup_num_steps = 0;
  /// Number of ranks that read different data.
  int num_data_parallel_ranks = 1;
  /// Samples per optimizer step on all ranks; needed if the settings count
  /// samples (`train_samples`), and unused otherwise.
  std::int64_t global_batch_size = 0;
};

/// Makes the schedule that the settings describe, with Megatron-LM's formulas:
/// a linear warm-up from `lr_warmup_init` to the optimizer's learning rate,
/// then `lr_decay_style` down to `min_lr`, once per optimizer step, regardless
/// of the number of processes; and weight decay from `start_weight_decay` to
/// `end_weight_decay` by `weight_decay_incr_style`. Each parameter group begins
/// from its own learning rate. Prepare it like any other schedule; the settings
/// are then no longer reported as without effect.
///
/// Throws ConfigError for settings without a length, for a warm-up as long as
/// the decay, for "WSD" without "lr_wsd_decay_iters" in `other_megatron_args`,
/// for weight decay that changes without a beginning or an end, or of an
/// optimizer without a known one, and for everything that Megatron-LM's options
/// reject.
ACCELERATE_API std::unique_ptr<optim::LRScheduler> scheduler_from_megatron_lm(
    const MegatronLMOptions& options,
    torch::optim::Optimizer& optimizer,
    const MegatronLMDummyScheduler& automatic = {});

}  // namespace accelerate
