#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <accelerate/export.h>
#include <accelerate/tracker.h>

// Layers of experts: a router sends each token to a few of many experts, and
// `ParallelOptions::expert` divides the experts among ranks.

namespace accelerate {

/// How a router turns logits into scores: softmax over all experts, or a
/// sigmoid for each.
enum class RouterScore { softmax, sigmoid };

/// Noise that a router adds in training, so that it tries experts it would not
/// otherwise choose.
enum class RouterNoise {
  /// No noise.
  none,
  /// Inputs are multiplied by uniform random numbers from 1 - noise_scale to 1
  /// + noise_scale (Fedus et al., "Switch Transformers", 2022).
  jitter,
  /// Gumbel noise, times noise_scale, on the logits that select experts, not on
  /// the weights (DeepSpeed's RSample).
  gumbel,
  /// Normal noise of standard deviation noise_scale on the logits (Riquelme et
  /// al., "Scaling Vision with Sparse Mixture of Experts", 2021, whose scale is
  /// 1 / num_experts).
  normal,
};

/// Which tokens an expert drops if it is sent more than its capacity.
enum class TokenDrop {
  /// Those with the lowest weights.
  lowest_weight,
  /// Those that come last.
  last_position,
  /// Any, drawn from LibTorch's CPU generator (DeepSpeed's use_rts).
  random,
};

/// Which ranks' tokens the balance loss counts.
enum class BalanceScope {
  /// All ranks that read different data or positions, which gives the loss of
  /// one process with the same global micro-batch if they have equally many
  /// tokens, or if backward() is given each rank's number as `num_items`:
  /// otherwise every rank's mean counts alike. Costs a small all-reduce per
  /// layer.
  all_ranks,
  /// Only this rank.
  rank,
};

/// How tokens choose experts.
struct RouterOptions {
  // Which experts, and with what weights.

  /// Number of experts per token. Computation, and traffic between ranks, are
  /// proportional to it.
  std::int64_t top_k = 2;
  /// How logits become scores.
  RouterScore score = RouterScore::softmax;
  /// The weights of a token's experts add up to weight_scale; with softmax,
  /// they are those of a softmax over the chosen experts alone. False: the
  /// weights are the scores times weight_scale.
  bool normalize_weights = true;
  /// What the weights of a token's experts are multiplied by.
  double weight_scale = 1.0;

  // Capacity.

  /// An expert takes at most capacity_factor x tokens x top_k / num_experts
  /// assignments of a rank's micro-batch, rounded up, and drops the others, for
  /// which the layer returns 0. Bounds the memory and time of busy experts; on
  /// an accelerator, the host then need not wait for the router's choice.
  /// Unset: none are dropped.
  std::optional<double> capacity_factor = std::nullopt;
  /// The capacity factor in evaluation mode. Unset: as in training.
  std::optional<double> eval_capacity_factor = std::nullopt;
  /// The minimum capacity, in assignments, for micro-batches of few tokens.
  /// Without effect unless there is a capacity factor.
  std::int64_t min_capacity = 0;
  /// Which assignments are dropped beyond the capacity.
  TokenDrop drop = TokenDrop::lowest_weight;

  // Losses, which the program must add: auxiliary_loss().

  /// Coefficient of the balance loss: num_experts times the sum over experts of
  /// the share of assignments times the mean score (Fedus et al., 2022, with
  /// the shares of all top_k choices). It is 1 for a perfect balance. 0: none;
  /// Fedus et al. take 1e-2.
  double balance_loss_coefficient = 0;
  /// Over which tokens the balance loss is taken.
  BalanceScope balance_scope = BalanceScope::all_ranks;
  /// Coefficient of the z-loss, the mean of log(sum(exp(logits)))^2, which
  /// keeps logits small (Zoph et al., "ST-MoE", 2022, who take 1e-3). 0: none.
  double z_loss_coefficient = 0;

  // Noise.

  /// Noise in training.
  RouterNoise noise = RouterNoise::none;
  /// Its size; see RouterNoise.
  double noise_scale = 1e-2;
};

/// What a router decides about tokens; all in fp32 except the first.
struct Routing {
  /// The experts of each token: tokens x top_k, int64.
  at::Tensor experts;
  /// Their weights: tokens x top_k.
  at::Tensor weights;
  /// All scores, which add up to 1: tokens x num_experts.
  at::Tensor scores;
  /// tokens x num_experts.
  at::Tensor logits;
};

/// Chooses experts with a linear layer without bias, in fp32 regardless of
/// tokens and autocast.
class ACCELERATE_API RouterImpl : public torch::nn::Cloneable<RouterImpl> {
 public:
  /// Throws ConfigError for options that contradict each other.
  RouterImpl(
      std::int64_t hidden_size,
      std::int64_t num_experts,
      const RouterOptions& options = {});

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// `tokens`: tokens x hidden_size.
  Routing forward(const at::Tensor& tokens);

  /// The options that it was made with.
  [[nodiscard]] const RouterOptions& options() const { return options_; }

  /// num_experts x hidden_size.
  at::Tensor weight;

 private:
  std::int64_t hidden_size_;
  std::int64_t num_experts_;
  RouterOptions options_;
};
/// The module holder of RouterImpl.
class Router : public torch::nn::ModuleHolder<RouterImpl> {
 public:
  using torch::nn::ModuleHolder<RouterImpl>::ModuleHolder;
  using Impl = RouterImpl;
};

/// The activation between an expert's matrices: `relu`, `gelu` (with erf) or
/// `silu`.
enum class ExpertActivation { relu, gelu, silu };

/// A multi-layer perceptron: down(activation(up(x))), or, if it is gated,
/// down(activation(gate(x)) * up(x)).
struct ExpertMlpOptions {
  /// Number of elements between the matrices; must be given.
  std::int64_t intermediate_size = 0;
  /// The function between the matrices.
  ExpertActivation activation = ExpertActivation::silu;
  /// Whether there is a matrix `gate`.
  bool gated = true;
  /// Whether the matrices have biases.
  bool bias = false;
};

/// All experts of a layer as one module, with each expert's matrix a slice of
/// one tensor. Takes tokens sorted by expert.
class ACCELERATE_API ExpertMlpImpl
    : public torch::nn::Cloneable<ExpertMlpImpl> {
 public:
  ExpertMlpImpl(
      std::int64_t num_experts,
      std::int64_t hidden_size,
      const ExpertMlpOptions& options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// `tokens`: all of the first expert, then all of the second, and so on;
  /// tokens x hidden_size. `counts`: how many each expert has.
  at::Tensor forward(
      const at::Tensor& tokens,
      const std::vector<std::int64_t>& counts);

  /// The options that it was made with.
  [[nodiscard]] const ExpertMlpOptions& options() const { return options_; }

  /// experts x intermediate_size x hidden_size; undefined if it is not gated.
  at::Tensor gate_proj;
  /// experts x intermediate_size x hidden_size.
  at::Tensor up_proj;
  /// experts x hidden_size x intermediate_size.
  at::Tensor down_proj;
  /// experts x intermediate_size or hidden_size; undefined without bias.
  at::Tensor gate_bias, up_bias, down_bias;

 private:
  std::int64_t num_experts_;
  std::int64_t hidden_size_;
  ExpertMlpOptions options_;
};
/// The module holder of ExpertMlpImpl.
class ExpertMlp : public torch::nn::ModuleHolder<ExpertMlpImpl> {
 public:
  using torch::nn::ModuleHolder<ExpertMlpImpl>::ModuleHolder;
  using Impl = ExpertMlpImpl;
};

/// The parts of an ExpertLayer.
struct ExpertLayerOptions {
  /// Number of elements of a token; must be given.
  std::int64_t hidden_size = 0;
  /// Number of experts over all ranks; must be given.
  std::int64_t num_experts = 0;
  /// How tokens choose experts.
  RouterOptions router = {};

  // The experts: one of the two.

  /// An ExpertMlp of all experts.
  std::optional<ExpertMlpOptions> mlp = std::nullopt;
  /// Makes expert `index`: a module whose forward takes a tensor of tokens x
  /// hidden_size, which may have no rows, and returns one of that shape. The
  /// experts of a layer must have parameters with the same names, shapes and
  /// dtypes.
  std::function<torch::nn::AnyModule(std::int64_t index)> make_expert = nullptr;

  // The shared expert, which processes all tokens while others are in transit:
  // at most one of the two.

  /// A dense MLP of linear layers.
  std::optional<ExpertMlpOptions> shared_mlp = std::nullopt;
  /// Makes a module as above.
  std::function<torch::nn::AnyModule()> make_shared_expert = nullptr;
  /// Multiplies the shared expert's result by the sigmoid of a linear layer of
  /// the token.
  bool shared_expert_gate = false;
};

/// How many tokens the experts of a layer were sent.
struct ExpertLoad {
  /// The layer's name in its model.
  std::string layer = {};
  /// Number of assignments, by expert, before any were dropped.
  std::vector<std::int64_t> assigned = {};
  /// Number of assignments that exceeded an expert's capacity.
  std::int64_t dropped = 0;

  /// The assignments of the busiest expert divided by the mean; 1 for a perfect
  /// balance, and if there were none.
  [[nodiscard]] ACCELERATE_API double imbalance() const;
};

namespace detail {
struct ExpertLayerState;
}  // namespace detail

/// A mixture of experts: y = sum over a token's experts of weight x expert(x),
/// plus the shared expert's result. In one process, or unprepared, it holds all
/// experts. Prepared with ParallelOptions::expert above 1, each rank along the
/// axis holds a consecutive range of them, as even as possible, and tokens are
/// sent to their experts and back, in numbers known only once they are routed.
/// Results equal those of all experts on one rank.
///
///     struct BlockImpl : torch::nn::Module {
///       accelerate::ExpertLayer experts = register_module(
///           "experts",
///           accelerate::ExpertLayer(accelerate::ExpertLayerOptions{
///               .hidden_size = 512,
///               .num_experts = 16,
///               .router = {.top_k = 2, .balance_loss_coefficient = 1e-2},
///               .mlp = accelerate::ExpertMlpOptions{.intermediate_size = 1024}}));
///     };
///
/// All ranks along `expert` must run the layer equally often, forward and
/// backward, each with its own tokens, possibly none. An expert that got no
/// tokens has gradients of zero. Second derivatives through tokens sent to
/// other ranks are an error.
class ACCELERATE_API ExpertLayerImpl
    : public torch::nn::Cloneable<ExpertLayerImpl> {
 public:
  /// Throws ConfigError for options that contradict each other.
  explicit ExpertLayerImpl(const ExpertLayerOptions& options);
  ~ExpertLayerImpl() override;

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// `x`: any shape whose last dimension is hidden_size. The result has the
  /// same shape.
  at::Tensor forward(const at::Tensor& x);

  /// The balance and z-losses of the last forward in training mode, times their
  /// coefficients, with their graph: 0-d, fp32. Undefined before the first one,
  /// if both coefficients are 0, and once auxiliary_loss(model) has returned
  /// it.
  [[nodiscard]] const at::Tensor& auxiliary_loss() const;
  /// The losses without coefficients and graph; each is undefined where the
  /// coefficient is 0.
  [[nodiscard]] const at::Tensor& balance_loss() const;
  /// Like balance_loss(), of the z-loss.
  [[nodiscard]] const at::Tensor& z_loss() const;

  /// Returns the assignments of this rank's tokens since the last call, or
  /// since the layer was made.
  ExpertLoad take_load();
  /// The range of experts that this rank holds: the first, and one past the
  /// last.
  [[nodiscard]] std::int64_t first_expert() const;
  /// One past the last expert that this rank holds.
  [[nodiscard]] std::int64_t last_expert() const;

  /// The options that it was made with.
  [[nodiscard]] const ExpertLayerOptions& options() const { return options_; }
  /// For the library's own use.
  [[nodiscard]] detail::ExpertLayerState& state() const { return *state_; }

 private:
  at::Tensor shared_result(const at::Tensor& tokens);
  /// Returns the results of rows sorted by expert; `counts` has each expert's
  /// number of rows.
  at::Tensor expert_results(
      const at::Tensor& rows,
      const std::vector<std::int64_t>& counts);

  ExpertLayerOptions options_;
  Router gate_ = nullptr;
  /// Null if the experts are modules of the program, which `compute_` calls.
  ExpertMlp mlp_ = nullptr;
  std::function<at::Tensor(
      const at::Tensor& rows,
      const std::vector<std::int64_t>& counts,
      std::int64_t first_expert)>
      compute_ = nullptr;
  torch::nn::AnyModule shared_;
  torch::nn::Linear shared_gate_ = nullptr;
  std::shared_ptr<detail::ExpertLayerState> state_;
};
/// The module holder of ExpertLayerImpl.
class ExpertLayer : public torch::nn::ModuleHolder<ExpertLayerImpl> {
 public:
  using torch::nn::ModuleHolder<ExpertLayerImpl>::ModuleHolder;
  using Impl = ExpertLayerImpl;
};

/// Returns the sum of the auxiliary losses of all ExpertLayers of a model in
/// its last forward, to be added to its loss: 0-d; 0 without a graph if no
/// layer has any, and in evaluation mode. Call it once after each forward, in a
/// statement of its own, since C++ evaluates the operands of + in any order:
/// throws ConfigError if there was no forward since the last call. A pipeline's
/// steps do this themselves: each stage computes the gradients of its own
/// losses, which the loss that step() returns leaves out.
ACCELERATE_API at::Tensor auxiliary_loss(const torch::nn::Module& model);

/// Converts expert loads to values to log: per layer
/// `experts/<layer>/imbalance`, `experts/<layer>/dropped` (the fraction of
/// assignments), and `experts/<layer>/load` (a list: the fraction of each
/// expert).
ACCELERATE_API TrackedValues
to_tracked_values(const std::vector<ExpertLoad>& loads);

}  // namespace accelerate
