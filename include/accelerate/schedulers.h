#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/state_dict.h>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

/// Learning-rate schedules with the names, options and numbers of
/// torch.optim.lr_scheduler, as functions of optimizer steps.
///
/// A schedule made with an optimizer sets its learning rates at once, and again
/// at every `step()`. Made without one it is unbound, to be combined by
/// SequentialLR or ChainedScheduler.
///
///     optim::SequentialLR schedule(
///         adamw, {100},
///         optim::LinearLR({.start_factor = 0.01, .total_iters = 100}),
///         optim::CosineAnnealingLR({.T_max = 900}));
namespace accelerate::optim {

/// The inputs from which a schedule computes a learning rate.
struct LRContext {
  std::int64_t step;  ///< optimizer steps so far
  double base_lr;     ///< the group's learning rate before any schedule
  double lr;          ///< the group's present learning rate
  std::size_t group;  ///< number of the parameter group
};

/// Base of all schedules; derive from it to write one. Borrows the optimizer.
/// Not for several threads at once.
class ACCELERATE_API LRScheduler {
 public:
  virtual ~LRScheduler();
  LRScheduler(LRScheduler&&) noexcept;
  LRScheduler& operator=(LRScheduler&&) noexcept;

  /// Call it after each optimizer step (the handle that prepare() returns skips
  /// those that the optimizer did not take). Throws ConfigError if unbound.
  virtual void step();
  /// A step with the present metric, for schedules that need one
  /// (ReduceLROnPlateau); the others throw ConfigError.
  virtual void step(double metric);

  /// One learning rate per parameter group.
  [[nodiscard]] const std::vector<double>& get_last_lr() const {
    return last_lrs_;
  }
  /// Number of steps so far; PyTorch calls it last_epoch.
  [[nodiscard]] std::int64_t step_count() const { return step_; }
  /// Steps after which `step()` throws; none for most schedules.
  [[nodiscard]] virtual std::optional<std::int64_t> total_steps() const;
  /// Null if unbound.
  [[nodiscard]] torch::optim::Optimizer* optimizer() const {
    return optimizer_;
  }

  /// The state to continue exactly here in another process, with an optimizer
  /// of as many groups. Loading also sets the optimizer's learning rates.
  /// Throws CheckpointError if the state is of another schedule or another
  /// number of groups; then nothing has changed.
  [[nodiscard]] virtual StateDict state_dict() const;
  virtual void load_state_dict(const StateDict& state);

  /// Binds an optimizer, with its present learning rates as the base. Throws
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
  /// Restarts at step 0, from the base learning rates, without looking at the
  /// present ones.
  virtual void restart();

  void set_lrs(const std::vector<double>& lrs);
  [[nodiscard]] std::vector<double> present_lrs() const;
  [[nodiscard]] std::size_t num_groups() const;
  void require_bound() const;

  template <class... Ts>
  static std::vector<std::unique_ptr<LRScheduler>> own(Ts&&... schedules) {
    std::vector<std::unique_ptr<LRScheduler>> owned;
    (owned.push_back(std::make_unique<Ts>(std::move(schedules))), ...);
    return owned;
  }

  std::int64_t step_ = 0;
  std::vector<double> base_lrs_;

 private:
  friend class SequentialLR;
  friend class ChainedScheduler;

  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<double> last_lrs_;
};

/// A factor as a function of steps.
using LRLambda = std::function<double(std::int64_t step)>;

/// base_lr x f(step). One function for all groups, or one per group.
class ACCELERATE_API LambdaLR : public LRScheduler {
 public:
  explicit LambdaLR(std::vector<LRLambda> lr_lambdas);
  explicit LambdaLR(LRLambda lr_lambda);
  LambdaLR(
      torch::optim::Optimizer& optimizer,
      std::vector<LRLambda> lr_lambdas);
  LambdaLR(torch::optim::Optimizer& optimizer, LRLambda lr_lambda);

 protected:
  double get_lr(const LRContext& context) const override;
  void begin() override;

 private:
  std::vector<LRLambda> lr_lambdas_;
};

/// The present learning rate x f(step), from step 1 on.
class ACCELERATE_API MultiplicativeLR : public LRScheduler {
 public:
  explicit MultiplicativeLR(std::vector<LRLambda> lr_lambdas);
  explicit MultiplicativeLR(LRLambda lr_lambda);
  MultiplicativeLR(
      torch::optim::Optimizer& optimizer,
      std::vector<LRLambda> lr_lambdas);
  MultiplicativeLR(torch::optim::Optimizer& optimizer, LRLambda lr_lambda);

 protected:
  double get_lr(const LRContext& context) const override;
  void begin() override;
  void restart() override;

 private:
  std::vector<LRLambda> lr_lambdas_;
};

struct StepLROptions {
  std::int64_t step_size = 1;
  double gamma = 0.1;
};
/// Multiplies by gamma every step_size steps.
class ACCELERATE_API StepLR : public LRScheduler {
 public:
  explicit StepLR(const StepLROptions& options);
  StepLR(torch::optim::Optimizer& optimizer, const StepLROptions& options);

 protected:
  double get_lr(const LRContext& context) const override;

 private:
  StepLROptions options_;
};

struct MultiStepLROptions {
  /// Steps in any order; a step named twice counts twice.
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
};
/// Multiplies by gamma at each milestone.
class ACCELERATE_API MultiStepLR : public LRScheduler {
 public:
  explicit MultiStepLR(MultiStepLROptions options);
  MultiStepLR(torch::optim::Optimizer& optimizer, MultiStepLROptions options);

 protected:
  double get_lr(const LRContext& context) const override;

 private:
  MultiStepLROptions options_;
};

struct ConstantLROptions {
  double factor = 1.0 / 3;
  std::int64_t total_iters = 5;
};
/// base_lr x factor for total_iters steps, base_lr afterwards.
class ACCELERATE_API ConstantLR : public LRScheduler {
 public:
  explicit ConstantLR(const ConstantLROptions& options);
  ConstantLR(
      torch::optim::Optimizer& optimizer,
      const ConstantLROptions& options);

 protected:
  double get_lr(const LRContext& context) const override;

 private:
  ConstantLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  std::int64_t total_iters = 5;
};
/// Goes linearly from base_lr x start_factor to base_lr x end_factor in
/// total_iters steps.
class ACCELERATE_API LinearLR : public LRScheduler {
 public:
  explicit LinearLR(const LinearLROptions& options);
  LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options);

 protected:
  double get_lr(const LRContext& context) const override;

 private:
  LinearLROptions options_;
};

/// Multiplies by gamma every step.
class ACCELERATE_API ExponentialLR : public LRScheduler {
 public:
  explicit ExponentialLR(double gamma);
  ExponentialLR(torch::optim::Optimizer& optimizer, double gamma);

 protected:
  double get_lr(const LRContext& context) const override;

 private:
  double gamma_;
};

struct PolynomialLROptions {
  std::int64_t total_iters = 5;
  double power = 1.0;
};
/// base_lr x (1 - step / total_iters)^power, 0 afterwards.
class ACCELERATE_API PolynomialLR : public LRScheduler {
 public:
  explicit PolynomialLR(const PolynomialLROptions& options);
  PolynomialLR(
      torch::optim::Optimizer& optimizer,
      const PolynomialLROptions& options);

 protected:
  double get_lr(const LRContext& context) const override;

 private:
  PolynomialLROptions options_;
};

struct CosineAnnealingLROptions {
  /// Number of steps from the base learning rate down to eta_min; afterwards it
  /// rises again.
  std::int64_t T_max = 1;
  double eta_min = 0;
};
/// Half a cosine (Loshchilov and Hutter, SGDR), in PyTorch's recursive form.
class ACCELERATE_API CosineAnnealingLR : public LRScheduler {
 public:
  explicit CosineAnnealingLR(const CosineAnnealingLROptions& options);
  CosineAnnealingLR(
      torch::optim::Optimizer& optimizer,
      const CosineAnnealingLROptions& options);

 protected:
  double get_lr(const LRContext& context) const override;

 private:
  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  std::int64_t T_0 = 1;     ///< steps of the first cycle
  std::int64_t T_mult = 1;  ///< length of each cycle relative to the previous
  double eta_min = 0;
};
/// Half a cosine, restarted repeatedly (Loshchilov and Hutter, SGDR).
class ACCELERATE_API CosineAnnealingWarmRestarts : public LRScheduler {
 public:
  explicit CosineAnnealingWarmRestarts(
      const CosineAnnealingWarmRestartsOptions& options);
  CosineAnnealingWarmRestarts(
      torch::optim::Optimizer& optimizer,
      const CosineAnnealingWarmRestartsOptions& options);
  /// With T_cur, the steps since the last restart, and T_i, the length of the
  /// present cycle. These are loaded as they were saved, so that a cycle goes
  /// on even if it did not begin where the number of steps says.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  double get_lr(const LRContext& context) const override;
  void apply() override;

 private:
  /// A place in a cycle of `length` steps, after `step` steps of the schedule.
  struct Cycle {
    std::int64_t step;
    double position;
    double length;
  };
  [[nodiscard]] Cycle cycle_at(std::int64_t step) const;

  CosineAnnealingWarmRestartsOptions options_;
  /// Unset: the first cycle began at step 0.
  std::optional<Cycle> loaded_ = std::nullopt;
};

/// Sets a group's momentum, for optimizers other than LibTorch's and those of
/// this library, whose momentum (or first beta) is found automatically.
using SetMomentum =
    std::function<void(torch::optim::OptimizerOptions& group, double momentum)>;

/// The shape in which OneCycleLR falls: half a cosine or a line.
enum class AnnealStrategy { cos, linear };

struct OneCycleLROptions {
  // The cycle.

  std::vector<double> max_lr = {};  ///< one, or one per group
  std::int64_t total_steps = 0;
  double pct_start = 0.3;  ///< fraction of the steps in which it rises
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;

  // Momentum.

  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;

  // Where learning rates begin and end.

  double div_factor = 25;         ///< begins at max_lr / div_factor
  double final_div_factor = 1e4;  ///< ends at the initial / final_div_factor
  bool three_phase = false;  ///< rise, fall symmetrically, then fall to the end

  // How momentum is set.

  SetMomentum set_momentum = {};
};
/// Rises and falls once (Smith and Topin, Super-Convergence); momentum does the
/// reverse. Steps beyond total_steps throw ConfigError.
class ACCELERATE_API OneCycleLR : public LRScheduler {
 public:
  explicit OneCycleLR(OneCycleLROptions options);
  OneCycleLR(torch::optim::Optimizer& optimizer, OneCycleLROptions options);
  std::optional<std::int64_t> total_steps() const override;
  /// With the bounds that PyTorch's class keeps in the optimizer's groups.
  /// Loading leaves these as the options say.
  StateDict state_dict() const override;

 protected:
  double get_lr(const LRContext& context) const override;
  void begin() override;
  void apply() override;

 private:
  struct Phase;
  [[nodiscard]] std::vector<Phase> phases(std::size_t group) const;
  [[nodiscard]] std::pair<double, double> lr_and_momentum(
      std::int64_t step,
      std::size_t group) const;

  OneCycleLROptions options_;
};

/// The height of CyclicLR's cycles: constant, halved from cycle to cycle, or
/// `gamma` to the power of the step.
enum class CyclicMode { triangular, triangular2, exp_range };

struct CyclicLROptions {
  // Learning rates, and the shape of a cycle.

  std::vector<double> base_lr = {};  ///< one, or one per group
  std::vector<double> max_lr = {};
  std::int64_t step_size_up = 2000;
  std::optional<std::int64_t> step_size_down = std::nullopt;  ///< unset: as up
  CyclicMode mode = CyclicMode::triangular;
  double gamma = 1.0;  ///< base of CyclicMode::exp_range
  /// Replaces `mode`: the height of a cycle as a function of its number (from
  /// 1), or, with `scale_by_step`, of the step.
  std::function<double(double)> scale_fn = {};
  bool scale_by_step = false;

  // Momentum.

  bool cycle_momentum = true;
  double base_momentum = 0.8;
  double max_momentum = 0.9;
  SetMomentum set_momentum = {};
};
/// Rises and falls repeatedly (Smith, Cyclical Learning Rates); momentum does
/// the reverse.
class ACCELERATE_API CyclicLR : public LRScheduler {
 public:
  explicit CyclicLR(CyclicLROptions options);
  CyclicLR(torch::optim::Optimizer& optimizer, CyclicLROptions options);

 protected:
  double get_lr(const LRContext& context) const override;
  void begin() override;
  void apply() override;
  void restart() override;

 private:
  [[nodiscard]] double height_at(std::int64_t step) const;

  CyclicLROptions options_;
};

/// Whether a metric is better if it falls or if it rises.
enum class PlateauMode { min, max };
/// Whether ReduceLROnPlateau's threshold is a fraction of the best metric or a
/// difference from it.
enum class ThresholdMode { rel, abs };

struct ReduceLROnPlateauOptions {
  PlateauMode mode =
      PlateauMode::min;  ///< whether the metric should fall or rise
  double factor = 0.1;
  std::int64_t patience = 10;  ///< bad steps that are tolerated
  double threshold = 1e-4;     ///< the least change that counts as better
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;  ///< steps after a reduction in which none is bad
  std::vector<double> min_lr = {0};  ///< one, or one per group
  double eps = 1e-8;                 ///< smaller reductions are skipped
};
/// Multiplies by factor when the metric given to `step(metric)` no longer
/// improves. Give every rank the same metric, or their learning rates diverge.
class ACCELERATE_API ReduceLROnPlateau : public LRScheduler {
 public:
  explicit ReduceLROnPlateau(ReduceLROnPlateauOptions options = {});
  explicit ReduceLROnPlateau(
      torch::optim::Optimizer& optimizer,
      ReduceLROnPlateauOptions options = {});
  void step() override;
  void step(double metric) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  double get_lr(const LRContext& context) const override;
  void begin() override;
  void restart() override;

 private:
  [[nodiscard]] bool is_better(double metric) const;

  ReduceLROnPlateauOptions options_;
  double best_ = 0;
  std::int64_t num_bad_steps_ = 0;
  std::int64_t cooldown_counter_ = 0;
};

/// Owned, unbound schedules.
using LRSchedulers = std::vector<std::unique_ptr<LRScheduler>>;

/// Schedules made without an optimizer, at least one, for SequentialLR and
/// ChainedScheduler.
template <class... Ts>
concept UnboundSchedules =
    (std::is_base_of_v<LRScheduler, Ts> && ...) && sizeof...(Ts) > 0;

/// One schedule after another; milestone i is the step at which schedule i + 1
/// begins, from its own step 0. Throws ConfigError unless there is one
/// milestone fewer than schedules, in ascending order.
class ACCELERATE_API SequentialLR : public LRScheduler {
 public:
  SequentialLR(std::vector<std::int64_t> milestones, LRSchedulers schedules);
  SequentialLR(
      torch::optim::Optimizer& optimizer,
      std::vector<std::int64_t> milestones,
      LRSchedulers schedules);
  template <class... Ts>
    requires UnboundSchedules<Ts...>
  explicit SequentialLR(std::vector<std::int64_t> milestones, Ts&&... schedules)
      : SequentialLR(std::move(milestones), own(std::move(schedules)...)) {}
  template <class... Ts>
    requires UnboundSchedules<Ts...>
  SequentialLR(
      torch::optim::Optimizer& optimizer,
      std::vector<std::int64_t> milestones,
      Ts&&... schedules)
      : SequentialLR(
            optimizer,
            std::move(milestones),
            own(std::move(schedules)...)) {}
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  double get_lr(const LRContext& context) const override;
  void begin() override;
  void apply() override;
  void restart() override;

 private:
  std::vector<std::int64_t> milestones_;
  LRSchedulers schedules_;
};

/// All schedules at once, each applied to the learning rates that the previous
/// one left.
class ACCELERATE_API ChainedScheduler : public LRScheduler {
 public:
  explicit ChainedScheduler(LRSchedulers schedules);
  ChainedScheduler(torch::optim::Optimizer& optimizer, LRSchedulers schedules);
  template <class... Ts>
    requires UnboundSchedules<Ts...>
  explicit ChainedScheduler(Ts&&... schedules)
      : ChainedScheduler(own(std::move(schedules)...)) {}
  template <class... Ts>
    requires UnboundSchedules<Ts...>
  explicit ChainedScheduler(
      torch::optim::Optimizer& optimizer,
      Ts&&... schedules)
      : ChainedScheduler(optimizer, own(std::move(schedules)...)) {}
  std::optional<std::int64_t> total_steps() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  double get_lr(const LRContext& context) const override;
  void begin() override;
  void apply() override;
  void restart() override;

 private:
  LRSchedulers schedules_;
};

/// Factors for LambdaLR that rise from 0 to 1 in num_warmup_steps and then
/// follow their name, as in Hugging Face Transformers.
///
///     optim::LambdaLR schedule(adamw, optim::linear_with_warmup(100, 1000));
ACCELERATE_API LRLambda constant_with_warmup(std::int64_t num_warmup_steps);
/// Falls to 0 at num_training_steps.
ACCELERATE_API LRLambda linear_with_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps);
/// `num_cycles` waves; 0.5 falls to 0 once.
ACCELERATE_API LRLambda cosine_with_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps,
    double num_cycles = 0.5);
/// Falls `num_cycles` times from 1 to 0.
ACCELERATE_API LRLambda cosine_with_restarts_and_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps,
    int num_cycles = 1);

struct PolynomialWithWarmupOptions {
  std::int64_t num_warmup_steps = 0;
  std::int64_t num_training_steps = 1;
  double lr_init =
      1e-3;  ///< the optimizer's learning rate, which is above lr_end
  double lr_end = 1e-7;
  double power = 1.0;
};
/// Falls to `lr_end` by a power of the remaining fraction of the steps.
ACCELERATE_API LRLambda
polynomial_with_warmup(const PolynomialWithWarmupOptions& options);

/// `timescale` unset: num_warmup_steps, or 10,000 without a warm-up.
ACCELERATE_API LRLambda inverse_sqrt_with_warmup(
    std::int64_t num_warmup_steps,
    std::optional<std::int64_t> timescale = std::nullopt);

/// The shape of a warm-up or decay of warmup_stable_decay().
enum class RampShape { linear, cosine, one_minus_sqrt };
struct WarmupStableDecayOptions {
  std::int64_t num_warmup_steps = 0;
  std::int64_t num_stable_steps = 0;
  std::int64_t num_decay_steps = 0;
  RampShape warmup_type = RampShape::linear;
  RampShape decay_type = RampShape::cosine;
  double min_lr_ratio = 0;  ///< where the warm-up begins and the decay ends
  double num_cycles = 0.5;  ///< waves of a cosine decay
};
/// Rises, stays at 1, and falls.
ACCELERATE_API LRLambda
warmup_stable_decay(const WarmupStableDecayOptions& options);

}  // namespace accelerate::optim
