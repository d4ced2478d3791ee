#include "config/options/option_rows.h"

#include <array>

namespace accelerate::detail {

namespace {

using enum OptionKind;
using enum OptionUse;

// Options about how layers are computed.
// clang-format off
constexpr std::array<OptionSpec, 19> kComputeRows{{
    {"dynamo_backend", "dynamo_config", "--dynamo_backend", "ACCELERATE_DYNAMO_BACKEND", choice, "no", "no|eager|aot_eager|inductor|aot_ts_nvfuser|nvprims_nvfuser|cudagraphs|ofi|fx2trt|onnxrt|tensorrt|aot_torchxla_trace_once|torhchxla_trace_once|torchxla_trace_once|ipex|tvm|hpu_backend", python_only, "torch.compile",
     "torch.compile, which is a part of Python"},
    {"dynamo_mode", "dynamo_config", "--dynamo_mode", "ACCELERATE_DYNAMO_MODE", text, "default", "", python_only, "torch.compile",
     "default, reduce-overhead or max-autotune"},
    {"dynamo_use_fullgraph", "dynamo_config", "--dynamo_use_fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH", boolean, "false", "", python_only, "torch.compile",
     "compile models as a whole"},
    {"dynamo_use_dynamic", "dynamo_config", "--dynamo_use_dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC", boolean, "false", "", python_only, "torch.compile",
     "shapes may change"},
    {"dynamo_use_regional_compilation", "dynamo_config", "--dynamo_use_regional_compilation", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", boolean, "false", "", python_only, "torch.compile",
     "compile repeated blocks once"},
    {"fp8_backend", "fp8_config", "--fp8_backend", "ACCELERATE_FP8_BACKEND", choice, "", "ao|te|msamp", acts, "fp8",
     "whose way of computing in fp8: torchao, TransformerEngine or MS-AMP"},
    {"fp8_use_autocast_during_eval", "fp8_config", "--fp8_use_autocast_during_eval", "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", boolean, "false", "", acts, "fp8",
     "fp8 while evaluating"},
    {"fp8_margin", "fp8_config", "--fp8_margin", "ACCELERATE_FP8_MARGIN", integer, "0", "0..", acts, "fp8",
     "margin of the scales, in powers of two"},
    {"fp8_interval", "fp8_config", "--fp8_interval", "ACCELERATE_FP8_INTERVAL", integer, "1", "1..", acts, "fp8",
     "steps between new scales"},
    {"fp8_format", "fp8_config", "--fp8_format", "ACCELERATE_FP8_FORMAT", choice, "HYBRID", "HYBRID|E4M3|E5M2", acts, "fp8",
     "which of the two formats; HYBRID takes E5M2 for gradients"},
    {"fp8_amax_history_len", "fp8_config", "--fp8_amax_history_len", "ACCELERATE_FP8_AMAX_HISTORY_LEN", integer, "1024", "1..", acts, "fp8",
     "steps whose largest values are remembered"},
    {"fp8_amax_compute_algo", "fp8_config", "--fp8_amax_compute_algo", "ACCELERATE_FP8_AMAX_COMPUTE_ALGO", choice, "most_recent", "max|most_recent", acts, "fp8",
     "which of those values sets the scale"},
    {"fp8_override_linear_precision", "fp8_config", "--fp8_override_linear_precision", "", text, "False,False,False", "", acts, "fp8",
     "three booleans for fprop, dgrad, wgrad: true computes that product in higher precision"},
    {"fp8_opt_level", "fp8_config", "--fp8_opt_level", "ACCELERATE_FP8_OPT_LEVEL", choice, "O2", "O1|O2", acts, "fp8",
     "MS-AMP's level"},
    {"fp8_enable_fsdp_float8_all_gather", "fp8_config", "--fp8_enable_fsdp_float8_all_gather", "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", truth, "1", "", acts, "fp8",
     "gather shards in fp8"},
    {"fp8_pad_inner_dim", "fp8_config", "--fp8_pad_inner_dim", "ACCELERATE_FP8_PAD_INNER_DIM", truth, "1", "", acts, "fp8",
     "pad inner sizes to multiples of 16"},
    {"fp8_amax_history_length", "fp8_config", "", "ACCELERATE_FP8_AMAX_HISTORY_LENGTH", integer, "", "1..", acts, "fp8",
     "fp8_amax_history_len, as Accelerate's questions write it"},
    {"fp8_amax_compute_algorithm", "fp8_config", "", "ACCELERATE_FP8_AMAX_COMPUTE_ALGORITHM", choice, "", "max|most_recent", acts, "fp8",
     "fp8_amax_compute_algo, as Accelerate's questions write it"},
    {"fp8_optimization_level", "fp8_config", "", "ACCELERATE_FP8_OPTIMIZATION_LEVEL", choice, "", "O1|O2", acts, "fp8",
     "fp8_opt_level, as Accelerate's questions write it"},
}};
// clang-format on

}  // namespace

std::span<const OptionSpec> compute_option_rows() { return kComputeRows; }

}  // namespace accelerate::detail
