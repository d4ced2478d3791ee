#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <accelerate/export.h>

/// Optimizers with fused steps, and optimizers that step during the backward
/// pass.
///
/// The first four are LibTorch's own classes with a fused step: one kernel for
/// all parameters of a dtype and device instead of a dozen per parameter, on
/// CPU and CUDA. Options, state and the format of torch::save are LibTorch's,
/// so they can replace one another at any time; results differ by rounding
/// only. Parameters in bf16 and fp16 are computed with in fp32 and rounded once
/// per step; complex ones are pairs of real numbers.
/// Gradients may be missing or have any strides, but not be sparse: that throws
/// ConfigError.
namespace accelerate::optim {

/// Base class by which an optimizer of the program's own declares that it
/// updates each element of a parameter from that element, its gradient and its
/// state alone, as SGD and Adam do:
///
///     class Lion : public torch::optim::Optimizer,
///                  public accelerate::optim::Elementwise { ... };
///
/// Such an optimizer can step on slices of parameters, so it fits models of any
/// kind. prepare() throws ConfigError if ranks hold slices (`shard`, `tensor`,
/// `expert`), or only some of the parameters (`pipeline`), and the optimizer is
/// neither declared here nor SGD, Adam, AdamW, Adagrad or RMSprop: a norm or a
/// sum over what one rank holds would silently be wrong. Subclasses of those
/// five count as the program's own, since they may override step(). A derived
/// class inherits the declaration.
class ACCELERATE_API Elementwise {
 public:
  virtual ~Elementwise();
};

/// Base class of an optimizer that needs full parameters, but each of them
/// alone, as LAMB and Muon do: it fits pipelines, whose ranks hold full
/// parameters, but no slices.
class ACCELERATE_API Parameterwise {
 public:
  virtual ~Parameterwise();
};

/// LibTorch's AdamW with a fused step.
class ACCELERATE_API AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  at::Tensor step(LossClosure closure = nullptr) override;
};

/// LibTorch's Adam with a fused step.
class ACCELERATE_API Adam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;
  at::Tensor step(LossClosure closure = nullptr) override;
};

/// LibTorch's SGD with a fused step.
class ACCELERATE_API SGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override;
};

/// LibTorch's Adagrad with a fused step.
class ACCELERATE_API Adagrad : public torch::optim::Adagrad {
 public:
  using torch::optim::Adagrad::Adagrad;
  at::Tensor step(LossClosure closure = nullptr) override;
};

/// Averages a gradient over ranks, in place.
using AverageGradient = std::function<void(const at::Tensor&)>;

/// Base class of optimizers that update each parameter during the backward
/// pass, as soon as its gradient is complete, and free the gradient at once:
/// the gradients are never all in memory at once. Complex parameters are pairs
/// of real numbers; a row of n of them is one of 2 n. `step()` and
/// `zero_grad()` are no-ops. Not for gradient accumulation, and not with fp16,
/// whose losses are scaled.
///
/// Accelerator::lomo_backward() runs them; without an Accelerator, call
///
///     lomo.fused_backward(loss, learning_rate);
class ACCELERATE_API FusedBackwardOptimizer : public torch::optim::Optimizer {
 public:
  ~FusedBackwardOptimizer() override;

  /// Runs backward and updates with the given learning rate. With
  /// `clip_grad_norm` there are two passes, because the norm of all gradients
  /// must be known before the first is used. `average`, if given, is called
  /// once per gradient, in the same order on ranks that run the same graph.
  void fused_backward(
      const at::Tensor& loss,
      double learning_rate,
      const AverageGradient& average = nullptr);
  /// No-op: the backward has already stepped.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Whether each element is updated from its own gradient alone, so that ranks
  /// can have slices of the parameters (tensor parallelism).
  [[nodiscard]] virtual bool updates_elements_alone() const { return false; }

 protected:
  FusedBackwardOptimizer(
      std::vector<at::Tensor> parameters,
      std::unique_ptr<torch::optim::OptimizerOptions> options,
      std::optional<double> clip_grad_norm,
      std::optional<double> clip_grad_value);

  /// Steps on one parameter with its complete gradient.
  virtual void update(
      at::Tensor& parameter,
      const at::Tensor& gradient,
      double learning_rate) = 0;
  /// Called when a new backward pass begins.
  virtual void begin_step() {}

 private:
  struct Pass;
  std::shared_ptr<Pass> pass_;
  std::optional<double> clip_grad_norm_;
  std::optional<double> clip_grad_value_;
};

struct LomoOptions {
  /// Weights shrink by the learning rate times this in each step.
  double weight_decay = 0;
  /// The largest norm of all gradients, after clip_grad_value; above 0. Costs a
  /// second backward per step. Unset: no clipping.
  std::optional<double> clip_grad_norm = std::nullopt;
  /// The largest absolute value of a gradient, above 0; costs no second
  /// backward. Unset: no clipping.
  std::optional<double> clip_grad_value = std::nullopt;
};
/// Low-memory optimization (Lv et al., Full Parameter Fine-tuning for Large
/// Language Models with Limited Resources): gradient descent, no state.
class ACCELERATE_API Lomo : public FusedBackwardOptimizer {
 public:
  explicit Lomo(
      std::vector<at::Tensor> parameters,
      const LomoOptions& options = {});

  /// True without `clip_grad_norm`, which needs all gradients.
  [[nodiscard]] bool updates_elements_alone() const override {
    return !options_.clip_grad_norm;
  }

 protected:
  void update(
      at::Tensor& parameter,
      const at::Tensor& gradient,
      double learning_rate) override;

 private:
  LomoOptions options_;
};

struct AdaLomoOptions {
  /// Weights shrink in each step by this times the learning rate and the
  /// parameter's root mean square (see eps_scale).
  double weight_decay = 0;
  /// In step t, second moments keep 1 - t ^ decay_rate of what they were; below
  /// 0. Closer to 0: they forget sooner.
  double decay_rate = -0.8;
  /// An update with a larger root mean square is scaled down to this one before
  /// the learning rate applies.
  double clip_threshold = 1.0;
  /// Added to squared gradients, so that none is divided by 0.
  double eps_square = 1e-30;
  /// Steps are relative to a parameter's root mean square, which counts as at
  /// least this, so that parameters that start at 0 can leave it.
  double eps_scale = 1e-3;
  /// See LomoOptions.
  std::optional<double> clip_grad_norm = std::nullopt;
  /// See LomoOptions.
  std::optional<double> clip_grad_value = std::nullopt;
};
/// Lomo with adaptive rates from factored second moments (Lv et al., AdaLomo):
/// the state of a matrix is one row and one column.
class ACCELERATE_API AdaLomo : public FusedBackwardOptimizer {
 public:
  explicit AdaLomo(
      std::vector<at::Tensor> parameters,
      const AdaLomoOptions& options = {});

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  void update(
      at::Tensor& parameter,
      const at::Tensor& gradient,
      double learning_rate) override;
  void begin_step() override;

 private:
  AdaLomoOptions options_;
  std::int64_t step_ = 0;
};

}  // namespace accelerate::optim
