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

/// Values for an "optimizer" section where it says "auto".
struct DummyOptim {
  double lr = 0.001;
  double weight_decay = 0;
};

/// Values for a "scheduler" section where it says "auto".
struct DummyScheduler {
  /// Number of steps of the schedule, including the warm-up.
  std::int64_t total_num_steps = 0;
  std::int64_t warmup_num_steps = 0;
};

/// The optimizer that a DeepSpeed configuration (its JSON,
/// Accelerator::deepspeed_config()) describes: Adam, which is AdamW unless
/// adam_w_mode is false, AdamW, SGD or Adagrad, each as the fused one of
/// accelerate::optim. Prepare it like any other. With such a section, prepare()
/// refuses optimizers made otherwise, as Accelerate does. Throws ConfigError for a
/// configuration without such a section, another type, a parameter that the
/// optimizer does not have, and an "auto" without a value.
ACCELERATE_API std::unique_ptr<torch::optim::Optimizer>
optimizer_from_deepspeed(
    const std::string& config,
    std::vector<at::Tensor> parameters,
    const DummyOptim& automatic = {});

/// The schedule that the configuration describes, for that optimizer: WarmupLR,
/// WarmupDecayLR or WarmupCosineLR, with DeepSpeed's formulas and defaults. With
/// such a section, prepare() refuses schedules made otherwise.
/// Throws ConfigError as above.
ACCELERATE_API std::unique_ptr<optim::LRScheduler> scheduler_from_deepspeed(
    const std::string& config,
    torch::optim::Optimizer& optimizer,
    const DummyScheduler& automatic = {});

}  // namespace accelerate
