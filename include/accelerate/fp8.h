#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <accelerate/export.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// The formats of float8 training: e4m3 has four bits for the exponent and
/// three for the mantissa (largest value 448), e5m2 five and two (57344).
enum class Float8Type { e4m3, e5m2 };

/// Which values share a scale, which is computed from the largest of them
/// (torchao's Float8LinearRecipeName).
enum class Float8LinearRecipeName {
  /// All values of a tensor. Gradients of outputs are e5m2, everything else
  /// e4m3.
  tensorwise,
  /// The values that a product sums over: each row of inputs and weights has
  /// its own scale, a power of two. Everything is e4m3. More accurate, and
  /// slower.
  rowwise,
  /// Like rowwise, but gradients of weights are computed in high precision.
  rowwise_with_gw_hp,
};

/// torchao's Float8LinearConfig: dynamic scaling, where each tensor's scale is
/// computed when it is cast.
struct ACCELERATE_API Float8LinearConfig {
  /// "tensorwise", "rowwise" or "rowwise_with_gw_hp". Throws ConfigError for
  /// another name.
  static Float8LinearConfig from_recipe_name(std::string_view name);

  /// The recipe by which scales are chosen: one per tensor, or one per row.
  Float8LinearRecipeName recipe = Float8LinearRecipeName::tensorwise;
  /// The format of inputs in the forward product, and in the product that gives
  /// the gradient of the weight. e5m2 is for inputs of a wide range of values,
  /// and rounds to half the precision.
  Float8Type input_dtype = Float8Type::e4m3;
  /// Round scales down to powers of two, so that scaling changes only the
  /// exponent. Unset: true in the row-wise recipes.
  std::optional<bool> round_scales_to_power_of_2 = std::nullopt;
  /// Pad the dimension that a product sums over with zeros to a multiple of 16,
  /// as hardware requires. Results stay the same. If false, products of other
  /// sizes (batches of other numbers of rows) are emulated.
  bool pad_inner_dim = false;
  /// For tensorwise with sharded parameters: gather weights of float8 layers as
  /// float8, in half the bytes of bf16. The layers' results stay the same.
  /// Other code that reads such a weight in a forward sees it rounded;
  /// full_parameters(), checkpoints, and weights shared by several modules keep
  /// their own values. Throws ConfigError with another recipe.
  bool enable_fsdp_float8_all_gather = false;
  /// Emulate products even if the device multiplies float8: operands are cast
  /// in the same way, and then multiplied in fp32. Slow; to find out whether
  /// the device's products are at fault.
  bool emulate = false;
  /// Not in torchao: gradients of outputs are rounded up or down at random,
  /// with the value itself as the expectation, so that small ones do not
  /// vanish. Draws one number from LibTorch's CPU generator per cast.
  bool stochastic_rounding = false;
};

/// Dynamic scaling as torchao does it. Layers: every linear
/// layer (choose_float8_layers()) whose sizes are both multiples of 16, except
/// the first and the last one.
struct AORecipeKwargs {
  /// Unset: the tensorwise recipe with the two fields below.
  std::optional<Float8LinearConfig> config = std::nullopt;
  /// Chooses layers, in place of the rule above. Gets each linear layer with
  /// its name, and returns whether it becomes float8.
  std::function<bool(const std::string& name, const torch::nn::Module& layer)>
      module_filter_func = nullptr;
  /// As in Float8LinearConfig. Unset: the launcher's (`fp8_pad_inner_dim`),
  /// else true. Not together with `config`, which has its own.
  std::optional<bool> pad_inner_dim = std::nullopt;
  /// As in Float8LinearConfig. Unset: the launcher's, else true. Not together
  /// with `config`.
  std::optional<bool> enable_fsdp_float8_all_gather = std::nullopt;
};

/// Which products stay in high precision.
struct OverrideLinearPrecision {
  /// The product of the forward.
  bool fprop = false;
  /// The product that gives the gradient of the input.
  bool dgrad = false;
  /// The product that gives the gradient of the weight.
  bool wgrad = false;

  bool operator==(const OverrideLinearPrecision&) const = default;
};

/// Delayed scaling as TransformerEngine does it: the scale of a step is
/// computed from the largest values of earlier steps, which ranks agree on at
/// each optimizer step; or MXFP8, where every 32 values share a scale. Layers:
/// every linear layer whose sizes are both multiples of 16. Unset fields take
/// the launcher's value, else the default named below.
struct TERecipeKwargs {
  /// Use float8 in evaluation mode as well. Unset: false.
  std::optional<bool> use_autocast_during_eval = std::nullopt;
  /// Scales are divided by 2^margin. Raise it if values overflow. Unset: 0.
  std::optional<std::int64_t> margin = std::nullopt;
  /// Number of steps between new scales. With more, scales follow changes
  /// later; the largest values are still searched in every step. Unset: 1.
  std::optional<std::int64_t> interval = std::nullopt;
  /// "E4M3", "E5M2", or "HYBRID": E4M3, but E5M2 for gradients of outputs.
  /// Unset: "HYBRID"; with MXFP8 "E4M3". MXFP8 does not allow "E5M2".
  std::optional<std::string> fp8_format = std::nullopt;
  /// Number of steps whose largest values are remembered, for "max" below:
  /// after an outlier, scales stay small for that long. Unset: 1024.
  std::optional<std::int64_t> amax_history_len = std::nullopt;
  /// Which values set scales: "max" of the history, if values overflow, or
  /// "most_recent". Unset: "most_recent".
  std::optional<std::string> amax_compute_algo = std::nullopt;
  /// Products that stay in high precision. Unset: none.
  std::optional<OverrideLinearPrecision> override_linear_precision =
      std::nullopt;
  /// MXFP8 instead of delayed scaling, for tensors in which a few large values
  /// would push the rest towards 0. Not with amax_history_len or
  /// amax_compute_algo, which MXFP8 does not have. Unset: false.
  std::optional<bool> use_mxfp8_block_scaling = std::nullopt;
  /// Not in TransformerEngine's recipes of these names: see
  /// Float8LinearConfig::stochastic_rounding.
  bool stochastic_rounding = false;
};

/// MS-AMP's recipe, with low-precision gradients and optimizer state. Scales
/// are dynamic, per tensor, and powers of two; inputs and weights are e4m3,
/// gradients of outputs e5m2 (Peng et al., FP8-LM: Training FP8 Large Language
/// Models, 2023). Layers: every linear layer whose sizes are both
/// multiples of 16. Throws ConfigError for models divided among ranks (shard,
/// tensor, expert, pipeline), for LOMO, and for join_uneven_inputs().
struct MSAMPRecipeKwargs {
  /// "O1": the gradient of such a layer's weight is kept in e4m3 with its own
  /// scale from backward until the optimizer steps, and is communicated between
  /// replicas in that form, in a quarter of the bytes of fp32. Until then its
  /// parameter has no grad(). "O2": in addition, between steps the optimizer
  /// keeps exp_avg as e4m3 codes and exp_avg_sq as fp16 codes, for all
  /// parameters of the model; for Adam and AdamW only. Checkpoints have the
  /// decoded values. Unset: the launcher's (`fp8_opt_level`), else "O2".
  /// Weights stay in their own precision, whereas MS-AMP has scaled fp16.
  std::optional<std::string> opt_level = std::nullopt;
};

/// Accelerate's deprecated class for TransformerEngine and MS-AMP.
struct FP8RecipeKwargs : TERecipeKwargs {
  /// See MSAMPRecipeKwargs.
  std::optional<std::string> opt_level = std::nullopt;
  /// "TE" or "MSAMP", in any case. Unset: the launcher's, else "TE".
  std::optional<std::string> backend = std::nullopt;
};

/// Which values of queries, keys and values share a scale when attention
/// computes in float8. Scales are powers of two, computed from the largest
/// value.
enum class Float8Attention {
  /// Attention computes in high precision.
  none,
  /// All values of a tensor.
  per_tensor,
  /// The values of one head of one sample, so that samples do not depend on
  /// each other.
  per_head,
};

/// How models train in float8, with `mixed_precision = Precision::fp8`.
using FP8Recipe = std::
    variant<AORecipeKwargs, TERecipeKwargs, MSAMPRecipeKwargs, FP8RecipeKwargs>;

/// Whether a linear layer computes in float8, and if not, why.
struct Float8LayerChoice {
  /// Dotted name of the layer.
  std::string name;
  /// Whether its products are in float8.
  bool is_float8 = false;
  /// Why not; empty if they are.
  std::string reason = {};
};

/// Returns, for every linear layer of a model in the order of named_modules(),
/// whether a recipe makes it a float8 layer. Linear layers are torch::nn::Linear,
/// classes derived from it, and modules of the class Linear of an exported
/// program. The default recipe is AORecipeKwargs().
ACCELERATE_API std::vector<Float8LayerChoice> choose_float8_layers(
    const torch::nn::Module& model,
    const FP8Recipe& recipe);
ACCELERATE_API std::vector<Float8LayerChoice> choose_float8_layers(
    const torch::nn::Module& model);

/// Describes the choices, one line per layer.
ACCELERATE_API std::string explain_float8_layers(
    const std::vector<Float8LayerChoice>& layers);

}  // namespace accelerate
