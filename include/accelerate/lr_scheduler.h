#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/state_dict.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace accelerate::optim {

/// The inputs from which a schedule computes a learning rate.
struct LRContext {
  std::int64_t step;  ///< optimizer steps so far
  double base_lr;     ///< the group's learning rate before any schedule
  double lr;          ///< the group's current learning rate
  std::size_t group;  ///< number of the parameter group
};

/// Base class of all schedules; derive from it to write your own. Borrows the
/// optimizer. Not thread-safe.
class ACCELERATE_API LRScheduler {
 public:
  virtual ~LRScheduler();
  LRScheduler(LRScheduler&&) noexcept;
  LRScheduler& operator=(LRScheduler&&) noexcept;

  /// Call it after each optimizer step (the handle that prepare() returns skips
  /// those that the optimizer did not take). Throws ConfigError if unbound.
  virtual void step();
  /// Steps with the current metric, for schedules that need one
  /// (ReduceLROnPlateau); the others throw ConfigError.
  virtual void step(double metric);

  /// One learning rate per parameter group.
  [[nodiscard]] const std::vector<double>& get_last_lr() const {
    return last_lrs_;
  }
  /// Number of steps so far; PyTorch calls it last_epoch.
  [[nodiscard]] std::int64_t step_count() const { return step_; }
  /// Number of steps after which `step()` throws; none for most schedules.
  [[nodiscard]] virtual std::optional<std::int64_t> total_steps() const;
  /// Null if unbound.
  [[nodiscard]] torch::optim::Optimizer* optimizer() const {
    return optimizer_;
  }

  /// The state with which another process continues exactly here, given an
  /// optimizer with the same number of groups. Loading also sets the
  /// optimizer's learning rates. Throws CheckpointError, before changing
  /// anything, if the state is of another schedule or another number of groups.
  [[nodiscard]] virtual StateDict state_dict() const;
  /// Continues where `state` was taken; see state_dict().
  virtual void load_state_dict(const StateDict& state);

  /// Binds an optimizer, with its current learning rates as the base. Throws
  /// ConfigError if one is already bound.
  void bind(torch::optim::Optimizer& optimizer);

 protected:
  LRScheduler();

  /// The learning rate at `context.step`, 0 included.
  [[nodiscard]] virtual double get_lr(const LRContext& context) const = 0;
  /// Called after bind() took the base learning rates: schedules that bring
  /// their own replace them.
  virtual void begin() {}
  /// Sets the learning rates of step `step_`, and whatever else the schedule
  /// controls.
  virtual void apply();
  /// Restarts at step 0, from the base learning rates, regardless of the
  /// current ones.
  virtual void restart();

  /// Sets the learning rate of each group.
  void set_lrs(const std::vector<double>& lrs);
  /// The learning rate of each group, as the optimizer has it now.
  [[nodiscard]] std::vector<double> present_lrs() const;
  /// Number of the optimizer's parameter groups.
  [[nodiscard]] std::size_t num_groups() const;
  /// Throws ConfigError without an optimizer.
  void require_bound() const;

  /// Moves schedules into a list, for a schedule that is made of others.
  template <class... Ts>
  static std::vector<std::unique_ptr<LRScheduler>> own(Ts&&... schedules) {
    std::vector<std::unique_ptr<LRScheduler>> owned;
    (owned.push_back(std::make_unique<Ts>(std::move(schedules))), ...);
    return owned;
  }

  /// Number of steps so far.
  std::int64_t step_ = 0;
  /// The learning rate of each group before any schedule.
  std::vector<double> base_lrs_;

 private:
  friend class ComposedSchedule;
  friend class SequentialLR;
  friend class ChainedScheduler;

  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<double> last_lrs_;
};

/// A factor as a function of steps.
using LRLambda = std::function<double(std::int64_t step)>;

}  // namespace accelerate::optim
