#include "config/options/option_rows.h"

#include <array>

namespace accelerate::detail {

namespace {

using enum OptionKind;
using enum OptionUse;

// Options that only Python programs and external services use.
// clang-format off
constexpr std::array<OptionSpec, 18> kPythonRows{{
    {"compute_environment", "", "", "", choice, "LOCAL_MACHINE", "LOCAL_MACHINE|AMAZON_SAGEMAKER", launches, "Only for Python programs",
     "where programs run"},
    {"distributed_type", "", "", "", choice, "", "NO|MULTI_CPU|MULTI_GPU|MULTI_NPU|MULTI_MLU|MULTI_HPU|MULTI_SDAA|MULTI_XPU|MULTI_MUSA|MULTI_NEURON|DEEPSPEED|FSDP|XLA|TP|MEGATRON_LM", launches, "Only for Python programs",
     "Accelerate's kinds of launch"},
    {"module", "", "--module", "", boolean, "false", "", launches, "Only for Python programs",
     "PROGRAM is a Python module, which python3 -m runs"},
    {"no_python", "", "--no_python", "", boolean, "false", "", launches, "Only for Python programs",
     "start a Python script as it is, by its first line, instead of by python3"},
    {"main_training_function", "", "--main_training_function", "", text, "main", "", python_only, "Only for Python programs",
     "function that a TPU launch calls"},
    {"tpu", "", "--tpu", "", boolean, "false", "", python_only, "Only for Python programs",
     "TPUs, which need torch_xla"},
    {"tpu_use_cluster", "", "--tpu_cluster", "", boolean, "false", "", python_only, "Only for Python programs",
     "a TPU pod"},
    {"no_tpu_cluster", "", "--no_tpu_cluster", "", boolean, "false", "", python_only, "Only for Python programs",
     "no TPU pod"},
    {"tpu_use_sudo", "", "--tpu_use_sudo", "", boolean, "false", "", python_only, "Only for Python programs",
     "sudo on TPU machines"},
    {"tpu_vm", "", "--vm", "", text, "", "", python_only, "Only for Python programs",
     "names of TPU machines"},
    {"tpu_env", "", "--env", "", text, "", "", python_only, "Only for Python programs",
     "variables for TPU machines"},
    {"tpu_name", "", "", "", text, "", "", python_only, "Only for Python programs",
     "name of the TPU, for tpu-config"},
    {"tpu_zone", "", "", "", text, "", "", python_only, "Only for Python programs",
     "its zone, for tpu-config"},
    {"command_file", "", "", "", text, "", "", python_only, "Only for Python programs",
     "file of commands, for tpu-config"},
    {"commands", "", "", "", text, "", "", python_only, "Only for Python programs",
     "commands, for tpu-config"},
    {"downcast_bf16", "", "--downcast_bf16", "", boolean, "false", "", python_only, "Only for Python programs",
     "bf16 for doubles as well, on a TPU"},
    {"aws_access_key_id", "", "--aws_access_key_id", "", text, "", "", python_only, "Only for Python programs",
     "key of a SageMaker job, which Amazon's Python SDK starts"},
    {"aws_secret_access_key", "", "--aws_secret_access_key", "", text, "", "", python_only, "Only for Python programs",
     "its secret"},
}};
// clang-format on

}  // namespace

std::span<const OptionSpec> python_option_rows() { return kPythonRows; }

}  // namespace accelerate::detail
