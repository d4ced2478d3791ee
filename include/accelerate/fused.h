#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace accelerate {

/// How the losses of targets become a result.
enum class LossReduction {
  mean,  ///< their sum, divided by the sum of their targets' weights
  /// Their sum.
  sum,
  none,  ///< one loss per target
};

struct FusedCrossEntropyOptions {
  /// Targets with this number do not count, nor do they get gradients.
  std::int64_t ignore_index = -100;
  /// From 0 to 1: the share of each target that is spread evenly over all
  /// classes.
  double label_smoothing = 0;
  /// What is returned.
  LossReduction reduction = LossReduction::mean;
  /// A weight per class, [classes]; undefined: 1. Gets no gradient.
  at::Tensor class_weights = {};
  /// Backward writes the gradient over the logits instead of into new memory.
  /// Only for logits that nothing else reads after the call, neither the
  /// program nor a backward: those of a linear layer, not of a softcap.
  bool overwrite_logits = false;
};

/// The softmax cross entropy of `logits`, [..., classes] in fp64, fp32, bf16 or
/// fp16, for `targets`, [...] in int64, on the same device. Equals
/// cross_entropy() of fp32 logits, but makes neither such a copy nor
/// probabilities: backward needs the logits and one number per row, and writes
/// the gradient in the logits' dtype. On CUDA devices forward and backward are
/// one kernel each where the run-time compiler can be found; see the guide on
/// GPUs.
///
/// Returns a scalar, or a tensor of the targets' shape without reduction, in
/// fp32 (fp64 for such logits), also under autocast. NaN for the mean if no
/// target counts. Gradients cannot be differentiated again.
///
/// Throws ConfigError for shapes, dtypes, devices and options that do not fit
/// and, on the CPU, for targets that name no class.
[[nodiscard]] ACCELERATE_API at::Tensor fused_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const FusedCrossEntropyOptions& options = {});

struct FusedLinearCrossEntropyOptions {
  /// See FusedCrossEntropyOptions.
  std::int64_t ignore_index = -100;
  /// See FusedCrossEntropyOptions.
  double label_smoothing = 0;
  /// The mean or the sum.
  LossReduction reduction = LossReduction::mean;
  /// See FusedCrossEntropyOptions.
  at::Tensor class_weights = {};
  /// The linear layer's bias, [classes]; may be undefined.
  at::Tensor bias = {};
  /// Number of rows whose logits exist at a time. 0: as many as make them as
  /// large as `hidden`, but at least 256. Fewer rows need less memory; products
  /// of very few take longer.
  std::int64_t chunk_size = 0;
};

/// The cross entropy of linear(hidden, weight, bias), of which only
/// `chunk_size` rows exist at a time: for large vocabularies, whose logits are
/// often the largest tensor of a training step. `hidden`: [..., features];
/// `weight`: [classes, features]; `targets`: [...] in int64.
///
/// The forward also computes the gradients of `hidden`, `weight` and the bias,
/// in their shapes, if they are needed, so that no product is computed twice;
/// backward only multiplies them by the incoming gradient, once. Under autocast
/// products are computed in its dtype, and otherwise in that of `hidden`, which
/// is then the weight's as well. Gradients of weights add up over chunks in
/// fp32 (fp64 for such weights).
///
/// Returns a scalar in fp32 (fp64 for such tensors). Throws ConfigError for
/// arguments that do not fit, and for a second backward through one result.
/// (Hsu et al., "Liger Kernel", 2024, section 3.2.)
[[nodiscard]] ACCELERATE_API at::Tensor fused_linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const FusedLinearCrossEntropyOptions& options = {});

/// What fused_bias_activation() applies.
enum class Activation {
  gelu,  ///< with erf
  /// GELU by its approximation with tanh.
  gelu_tanh,
  /// x times sigmoid(x).
  silu,
  /// The positive part.
  relu,
};

/// activation(input + bias), in the input's dtype (fp64, fp32, bf16 or fp16):
/// `input` is [..., features], such as the product of a linear layer without
/// bias; `bias` is [features], of the same dtype or in fp32 beside bf16 and
/// fp16. On CUDA devices one kernel each for the forward and the gradient of the
/// input, whose sum over rows is the bias's; there, gradients cannot be
/// differentiated again.
///
/// Throws ConfigError for arguments that do not fit.
[[nodiscard]] ACCELERATE_API at::Tensor fused_bias_activation(
    const at::Tensor& input,
    const at::Tensor& bias,
    Activation activation);

/// What the functions below return.
struct NormalizedSum {
  /// The LayerNorm or RMSNorm, in the dtype of the inputs.
  at::Tensor normalized;
  /// input + residual: the residual of the next layer.
  at::Tensor sum;
};

/// The sum of a layer's output and its residual, and the LayerNorm of the sum
/// over its last dimension: `input` and `residual` are [..., features], `weight`
/// and `bias` [features]; each may be undefined. Weights may be fp32 beside bf16
/// or fp16 inputs, and the result still has the inputs' dtype; sums over
/// features are in fp32 (fp64). On CUDA devices one kernel each for the forward
/// and the backward, for rows of up to 4,096 values in fp32 and 8,192 in bf16
/// or fp16 that are whole vectors of 16 bytes; there, gradients cannot be
/// differentiated again.
///
/// Throws ConfigError for arguments that do not fit.
[[nodiscard]] ACCELERATE_API NormalizedSum fused_add_layer_norm(
    const at::Tensor& input,
    const at::Tensor& residual,
    const at::Tensor& weight = {},
    const at::Tensor& bias = {},
    double epsilon = 1e-5);

/// Adds, and normalises with RMSNorm, which divides by the root of the mean
/// square and has no bias.
[[nodiscard]] ACCELERATE_API NormalizedSum fused_add_rms_norm(
    const at::Tensor& input,
    const at::Tensor& residual,
    const at::Tensor& weight = {},
    double epsilon = 1e-6);

/// Rotates pairs of features by angles that depend on the position (Su et al.,
/// "RoFormer", 2021). `input`: [..., positions, features], such as queries of
/// shape [batch, heads, positions, features]; `cosines` and `sines`:
/// [positions, features / 2], in fp32 (fp64 for such an input), which get no
/// gradients. With `interleaved`, neighbouring features form pairs, as in
/// RoFormer; otherwise features i and i + features / 2 do, as in Llama. Returns
/// a new tensor of the input's shape and dtype. Makes no tensors in between,
/// forward and backward, and can be differentiated any number of times.
///
/// Throws ConfigError for arguments that do not fit.
[[nodiscard]] ACCELERATE_API at::Tensor rotary_embedding(
    const at::Tensor& input,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    bool interleaved = false);

}  // namespace accelerate
