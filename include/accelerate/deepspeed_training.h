#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <accelerate/export.h>
#include <accelerate/schedulers.h>

namespace accelerate {

/// What an "optimizer" section takes where it says "auto".
struct DummyOptim {
  double lr = 0.001;
  double weight_decay = 0;
};

/// What a "scheduler" section takes where it says "auto".
struct DummyScheduler {
  /// Steps of the schedule, warm-up included.
  std::int64_t total_num_steps = 0;
  std::int64_t warmup_num_steps = 0;
};

/// The optimizer that a DeepSpeed configuration (its JSON text,
/// Accelerator::deepspeed_config()) describes: Adam, which is AdamW unless
/// adam_w_mode is false, AdamW, SGD or Adagrad, each the fused one of
/// accelerate::optim. Prepare it as any other. Throws ConfigError for a
/// configuration without such a section, another type, a parameter that the
/// optimizer does not have, and an "auto" that nothing fills.
ACCELERATE_API std::unique_ptr<torch::optim::Optimizer>
optimizer_from_deepspeed(
    const std::string& config,
    std::vector<at::Tensor> parameters,
    const DummyOptim& automatic = {});

/// The schedule that it describes, for that optimizer: WarmupLR, WarmupDecayLR
/// or WarmupCosineLR, with DeepSpeed's formulas and defaults. Throws
/// ConfigError likewise.
ACCELERATE_API std::unique_ptr<optim::LRScheduler> scheduler_from_deepspeed(
    const std::string& config,
    torch::optim::Optimizer& optimizer,
    const DummyScheduler& automatic = {});

}  // namespace accelerate
