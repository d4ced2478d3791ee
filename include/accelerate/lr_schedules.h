#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/lr_scheduler.h>
#include <accelerate/state_dict.h>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

/// The schedules of torch.optim.lr_scheduler that are not made of others.
namespace accelerate::optim {

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

/// The current learning rate x f(step), from step 1 on.
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
  /// Number of steps between two changes, at least 1.
  std::int64_t step_size = 1;
  /// The factor of each change.
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
  /// The factor of each change.
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
  /// Above 0 and at most 1.
  double factor = 1.0 / 3;
  /// Number of steps with the factor.
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
  /// Where it begins; above 0, at most 1.
  double start_factor = 1.0 / 3;
  /// Where it ends; from 0 to 1.
  double end_factor = 1.0;
  /// Number of steps of the line.
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
  /// Number of steps until 0.
  std::int64_t total_iters = 5;
  /// 1: a line; larger: falls faster at first.
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
  /// The lowest learning rate.
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
  /// The lowest learning rate.
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
  /// Includes T_cur, the steps since the last restart, and T_i, the length of
  /// the current cycle. They are loaded as saved, so that a cycle continues
  /// even if it did not begin where the number of steps says.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  double get_lr(const LRContext& context) const override;
  void apply() override;

 private:
  /// The position in a cycle of `length` steps, after `step` steps of the
  /// schedule.
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

/// The shape in which OneCycleLR falls: half a cosine (`cos`) or a line
/// (`linear`).
enum class AnnealStrategy { cos, linear };

struct OneCycleLROptions {
  // The cycle.

  std::vector<double> max_lr = {};  ///< one, or one per group
  /// Number of steps of the cycle; must be given.
  std::int64_t total_steps = 0;
  double pct_start = 0.3;  ///< fraction of the steps in which it rises
  /// The shape of the fall, and of the rise.
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;

  // Momentum.

  /// Whether momentum changes as well.
  bool cycle_momentum = true;
  /// Momentum where the learning rate is highest.
  double base_momentum = 0.85;
  /// Momentum where the learning rate is lowest.
  double max_momentum = 0.95;

  // Where learning rates begin and end.

  double div_factor = 25;         ///< begins at max_lr / div_factor
  double final_div_factor = 1e4;  ///< ends at the initial / final_div_factor
  bool three_phase = false;  ///< rise, fall symmetrically, then fall to the end

  // How momentum is set.

  /// Empty: found automatically.
  SetMomentum set_momentum = {};
};
/// Rises and falls once (Smith and Topin, Super-Convergence); momentum does the
/// reverse. Steps beyond total_steps throw ConfigError.
class ACCELERATE_API OneCycleLR : public LRScheduler {
 public:
  explicit OneCycleLR(OneCycleLROptions options);
  OneCycleLR(torch::optim::Optimizer& optimizer, OneCycleLROptions options);
  std::optional<std::int64_t> total_steps() const override;
  /// Includes the bounds that PyTorch's class keeps in the optimizer's groups.
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

/// The height of CyclicLR's cycles: constant (`triangular`), halved from cycle
/// to cycle (`triangular2`), or `gamma` to the power of the step (`exp_range`).
enum class CyclicMode { triangular, triangular2, exp_range };

struct CyclicLROptions {
  // Learning rates, and the shape of a cycle.

  std::vector<double> base_lr = {};  ///< one, or one per group
  /// The top of a cycle: one, or one per group.
  std::vector<double> max_lr = {};
  /// Number of steps of a rise.
  std::int64_t step_size_up = 2000;
  std::optional<std::int64_t> step_size_down = std::nullopt;  ///< unset: as up
  /// How the height of cycles changes.
  CyclicMode mode = CyclicMode::triangular;
  double gamma = 1.0;  ///< base of CyclicMode::exp_range
  /// Replaces `mode`: the height of a cycle as a function of its number (from
  /// 1), or, with `scale_by_step`, of the step.
  std::function<double(double)> scale_fn = {};
  /// See scale_fn.
  bool scale_by_step = false;

  // Momentum.

  /// Whether momentum changes as well.
  bool cycle_momentum = true;
  /// Momentum where the learning rate is highest.
  double base_momentum = 0.8;
  /// Momentum where the learning rate is lowest.
  double max_momentum = 0.9;
  /// Empty: found automatically.
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

/// Whether a metric is better if it falls (`min`) or if it rises (`max`).
enum class PlateauMode { min, max };
/// Whether ReduceLROnPlateau's threshold is a fraction of the best metric
/// (`rel`) or a difference from it (`abs`).
enum class ThresholdMode { rel, abs };

struct ReduceLROnPlateauOptions {
  PlateauMode mode =
      PlateauMode::min;  ///< whether the metric should fall or rise
  /// The factor of each reduction, below 1.
  double factor = 0.1;
  std::int64_t patience = 10;  ///< bad steps that are tolerated
  double threshold = 1e-4;     ///< the least change that counts as better
  /// What the threshold means.
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;  ///< steps after a reduction in which none is bad
  std::vector<double> min_lr = {0};  ///< one, or one per group
  double eps = 1e-8;                 ///< smaller reductions are skipped
};
/// Multiplies by factor when the metric passed to `step(metric)` no longer
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

}  // namespace accelerate::optim
