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
  /// The learning rate.
  double lr = 0.001;
  /// The decay of weights per step.
  double weight_decay = 0;
};

/// Values for a "scheduler" section where it says "auto".
struct DummyScheduler {
  /// Number of steps of the schedule, including the warm-up.
  std::int64_t total_num_steps = 0;
  /// Number of steps of the warm-up.
  std::int64_t warmup_num_steps = 0;
};

/// Makes the optimizer of a DeepSpeed configuration's "optimizer" section
/// (`config` is its JSON, AcceleratorState::deepspeed_config): Adam, which is
/// AdamW unless adam_w_mode is false, AdamW, SGD or Adagrad, each in
/// accelerate::optim's fused version. Prepare it like any other. With such a
/// section, prepare() rejects optimizers made in any other way, as Accelerate
/// does. Throws ConfigError for a configuration without the section, another
/// type, a parameter that the optimizer does not have, and an "auto" without a
/// value.
ACCELERATE_API std::unique_ptr<torch::optim::Optimizer>
optimizer_from_deepspeed(
    const std::string& config,
    std::vector<at::Tensor> parameters,
    const DummyOptim& automatic = {});

/// Makes the schedule that the configuration describes, for that optimizer:
/// WarmupLR, WarmupDecayLR or WarmupCosineLR, with DeepSpeed's formulas and
/// defaults. With such a section, prepare() rejects schedules made in any other
/// way. Throws ConfigError as above.
ACCELERATE_API std::unique_ptr<optim::LRScheduler> scheduler_from_deepspeed(
    const std::string& config,
    torch::optim::Optimizer& optimizer,
    const DummyScheduler& automatic = {});

}  // namespace accelerate
