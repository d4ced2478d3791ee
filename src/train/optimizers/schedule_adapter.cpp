#include "train/optimizers/schedule_adapter.h"

#include <cstdint>

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "optim/made_from_engine.h"

namespace accelerate::detail {

namespace {

class OwnSchedule final : public ScheduleAdapter {
 public:
  explicit OwnSchedule(optim::LRScheduler& schedule) : schedule_(schedule) {}

  [[nodiscard]] const void* address() const override { return &schedule_; }
  [[nodiscard]] const torch::optim::Optimizer* optimizer() const override {
    return schedule_.optimizer();
  }
  [[nodiscard]] bool is_from_deepspeed() const override {
    return dynamic_cast<const MadeFromDeepSpeed*>(&schedule_) != nullptr;
  }
  [[nodiscard]] bool is_from_megatron_lm() const override {
    return dynamic_cast<const MadeFromMegatronLM*>(&schedule_) != nullptr;
  }
  // The schedules' own step() functions throw where a metric does not fit.
  void require_accepts(bool) const override {}
  void step(const SchedulerStep& step) override {
    step.has_metric ? schedule_.step(step.metric) : schedule_.step();
  }
  [[nodiscard]] bool has_ended() const override {
    const auto total = schedule_.total_steps();
    return total && schedule_.step_count() >= *total;
  }
  [[nodiscard]] std::optional<std::vector<double>> last_lrs() const override {
    return schedule_.get_last_lr();
  }
  [[nodiscard]] StateDict state_dict() const override {
    return schedule_.state_dict();
  }
  void load_state_dict(const StateDict& state) override {
    schedule_.load_state_dict(state);
  }

 private:
  optim::LRScheduler& schedule_;
};

// LibTorch's schedules can neither save nor load state: their steps are
// counted, and repeated to bring another schedule to the same point.
class CountedSchedule : public ScheduleAdapter {
 public:
  void step(const SchedulerStep& step) final {
    ++num_steps_;
    if (step.has_metric) metrics_.push_back(step.metric);
    step_schedule(step);
  }
  [[nodiscard]] StateDict state_dict() const final {
    return {{"num_steps", num_steps_}, {"metrics", metrics_}};
  }
  void load_state_dict(const StateDict& state) final {
    const auto num_steps = state.get<std::int64_t>("num_steps");
    const auto metrics = state.get<std::vector<double>>("metrics");
    if (num_steps < num_steps_) {
      throw CheckpointError(format(
          "[checkpoint] a LibTorch schedule has taken {} steps and cannot go "
          "back to {}; load before training, or use a schedule of "
          "accelerate::optim",
          num_steps_,
          num_steps));
    }
    while (num_steps_ < num_steps) {
      const auto i = static_cast<std::size_t>(num_steps_);
      if (takes_metrics() && i >= metrics.size()) {
        throw CheckpointError(
            "[checkpoint] the state of a schedule has too few metrics");
      }
      step({takes_metrics(), takes_metrics() ? metrics[i] : 0.0});
    }
  }

 protected:
  [[nodiscard]] virtual bool takes_metrics() const = 0;
  virtual void step_schedule(const SchedulerStep& step) = 0;

 private:
  std::int64_t num_steps_ = 0;
  std::vector<double> metrics_;
};

// Gives access to a protected function of LibTorch.
struct TorchRates : torch::optim::LRScheduler {
  static std::vector<double> of(const torch::optim::LRScheduler& schedule) {
    return (schedule.*(&TorchRates::get_current_lrs))();
  }
};

class TorchSchedule final : public CountedSchedule {
 public:
  explicit TorchSchedule(torch::optim::LRScheduler& schedule)
      : schedule_(schedule) {}

  [[nodiscard]] const void* address() const override { return &schedule_; }
  void require_accepts(bool has_metric) const override {
    if (!has_metric) return;
    throw ConfigError(
        "[train] step() got a metric, which only ReduceLROnPlateau uses; call "
        "step() without one");
  }
  [[nodiscard]] torch::optim::LRScheduler& torch_schedule() const override {
    return schedule_;
  }
  [[nodiscard]] std::optional<std::vector<double>> last_lrs() const override {
    return TorchRates::of(schedule_);
  }

 protected:
  [[nodiscard]] bool takes_metrics() const override { return false; }
  void step_schedule(const SchedulerStep&) override { schedule_.step(); }

 private:
  torch::optim::LRScheduler& schedule_;
};

class PlateauSchedule final : public CountedSchedule {
 public:
  explicit PlateauSchedule(torch::optim::ReduceLROnPlateauScheduler& schedule)
      : schedule_(schedule) {}

  [[nodiscard]] const void* address() const override { return &schedule_; }
  void require_accepts(bool has_metric) const override {
    if (has_metric) return;
    throw ConfigError(
        "[train] ReduceLROnPlateauScheduler needs a metric, but got none; call "
        "step(metric), with the same metric on every rank");
  }

 protected:
  [[nodiscard]] bool takes_metrics() const override { return true; }
  void step_schedule(const SchedulerStep& step) override {
    schedule_.step(static_cast<float>(step.metric));
  }

 private:
  torch::optim::ReduceLROnPlateauScheduler& schedule_;
};

}  // namespace

torch::optim::LRScheduler& ScheduleAdapter::torch_schedule() const {
  throw ConfigError(
      "[train] inner() is for schedules of torch::optim; use the variable "
      "passed to prepare()");
}

SchedulerReference::SchedulerReference(optim::LRScheduler* borrowed)
    : schedule(std::make_shared<OwnSchedule>(*borrowed)) {}
SchedulerReference::SchedulerReference(torch::optim::LRScheduler* borrowed)
    : schedule(std::make_shared<TorchSchedule>(*borrowed)) {}
SchedulerReference::SchedulerReference(
    torch::optim::ReduceLROnPlateauScheduler* borrowed)
    : schedule(std::make_shared<PlateauSchedule>(*borrowed)) {}

}  // namespace accelerate::detail
