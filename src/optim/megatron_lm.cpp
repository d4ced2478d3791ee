#include <accelerate/megatron_lm_training.h>

#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accelerate/error.h>

#include "base/require.h"
#include "engines/megatron_lm/megatron_schedule.h"
#include "optim/made_from_engine.h"

namespace accelerate {

namespace {

using torch::optim::OptimizerOptions;

template <class... Options>
bool set_weight_decay_of(OptimizerOptions& options, const double* value) {
  const auto set = [&](auto* typed) {
    if (typed != nullptr && value != nullptr) typed->weight_decay(*value);
    return typed != nullptr;
  };
  return (set(dynamic_cast<Options*>(&options)) || ...);
}

// LibTorch's option classes have no common interface for weight decay. If
// `value` is null, only checks whether there is one.
bool set_weight_decay(OptimizerOptions& options, const double* value) {
  return set_weight_decay_of<
      torch::optim::AdamWOptions,
      torch::optim::AdamOptions,
      torch::optim::SGDOptions,
      torch::optim::AdagradOptions,
      torch::optim::RMSpropOptions>(options, value);
}

class MegatronLMSchedule final : public optim::LRScheduler,
                                 public detail::MadeFromMegatronLM {
 public:
  MegatronLMSchedule(
      torch::optim::Optimizer& optimizer,
      detail::MegatronSchedule schedule)
      : schedule_(std::move(schedule)) {
    bind(optimizer);
  }

  void load_state_dict(const StateDict& state) override {
    LRScheduler::load_state_dict(state);
    apply_weight_decay();
  }

 protected:
  [[nodiscard]] double get_lr(const optim::LRContext& context) const override {
    return schedule_.lr_at(context.step, context.base_lr);
  }

  void begin() override {
    if (!schedule_.weight_decay_at(0)) return;
    for (auto& group : optimizer()->param_groups()) {
      if (set_weight_decay(group.options(), nullptr)) continue;
      throw ConfigError(
          "[optim] Megatron-LM's schedule: weight_decay_incr_style changes the "
          "weight decay of an optimizer without a known one; leave it out");
    }
  }

  void apply() override {
    LRScheduler::apply();
    apply_weight_decay();
  }

 private:
  void apply_weight_decay() {
    const auto value = schedule_.weight_decay_at(step_count());
    if (!value) return;
    for (auto& group : optimizer()->param_groups())
      set_weight_decay(group.options(), &*value);
  }

  detail::MegatronSchedule schedule_;
};

}  // namespace

std::unique_ptr<optim::LRScheduler> scheduler_from_megatron_lm(
    const MegatronLMOptions& options,
    torch::optim::Optimizer& optimizer,
    const MegatronLMDummyScheduler& automatic) {
  const auto require = [](const char* what, std::int64_t value, int least) {
    detail::require_at_least("optim", what, value, least);
  };
  require("total_num_steps", automatic.total_num_steps, 0);
  require("warmup_num_steps", automatic.warmup_num_steps, 0);
  require("num_data_parallel_ranks", automatic.num_data_parallel_ranks, 1);
  require("global_batch_size", automatic.global_batch_size, 0);
  const std::int64_t ranks = automatic.num_data_parallel_ranks;
  return std::make_unique<MegatronLMSchedule>(
      optimizer,
      detail::read_megatron_schedule(
          options,
          {.train_iters = automatic.total_num_steps / ranks,
           .warmup_iters = automatic.warmup_num_steps / ranks,
           .global_batch_size = automatic.global_batch_size}));
}

}  // namespace accelerate
