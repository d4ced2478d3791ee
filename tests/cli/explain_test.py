"""Compares what `config show --explain` prints with explained_settings.txt.

    explain_test.py TOOL            fails if an explanation has changed
    explain_test.py TOOL --record   writes the file again

Each case is a set of variables and, for some, a config file. Of the settings, only those that differ from the ones
without any variable are recorded.
"""
import difflib
import os
import pathlib
import subprocess
import sys
import tempfile

RECORD = pathlib.Path(__file__).with_name("explained_settings.txt")
FSDP = {"ACCELERATE_USE_FSDP": "true"}
FSDP2 = {**FSDP, "FSDP_VERSION": "2"}
DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true"}
MEGATRON = {"ACCELERATE_USE_MEGATRON_LM": "true"}
JSON = (
    '{"zero_optimization": {"stage": 3, "overlap_comm": true, "offload_param": {"device": "cpu"}},'
    ' "gradient_clipping": 0.25, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},'
    ' "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}}'
)
CASES = [
    ({}, None),
    ({"ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "te", "ACCELERATE_FP8_MARGIN": "1"}, None),
    ({"ACCELERATE_DYNAMO_BACKEND": "inductor", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}, None),
    (FSDP, None),
    (
        {
            **FSDP,
            "FSDP_SHARDING_STRATEGY": "HYBRID_SHARD",
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block, Head",
            "FSDP_OFFLOAD_PARAMS": "true",
            "FSDP_BACKWARD_PREFETCH": "NO_PREFETCH",
            "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
            "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
            "FSDP_RESHARD_AFTER_FORWARD": "false",
        },
        None,
    ),
    (
        {
            **FSDP2,
            "FSDP_RESHARD_AFTER_FORWARD": "4",
            "FSDP_BACKWARD_PREFETCH": "BACKWARD_POST",
            "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
            "FSDP_MIN_NUM_PARAMS": "9",
            "FSDP_ACTIVATION_CHECKPOINTING": "true",
            "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "true",
        },
        None,
    ),
    ({**FSDP, "FSDP_SHARDING_STRATEGY": "SOME", "FSDP_BACKWARD_PREFETCH": "OTHER"}, None),
    ({"FSDP_VERSION": "2", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2"}, None),
    ({**FSDP, **DEEPSPEED}, None),
    (DEEPSPEED, None),
    (
        {
            **DEEPSPEED,
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
            "ACCELERATE_GRADIENT_CLIPPING": "0.5",
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu",
            "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
            "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
            "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": "Experts, Moe",
            "ACCELERATE_FP8_BACKEND": "msamp",
        },
        None,
    ),
    ({**DEEPSPEED, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1", "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true"}, None),
    (
        {
            **DEEPSPEED,
            "ACCELERATE_DEEPSPEED_CONFIG_FILE": JSON,
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
            "ACCELERATE_GRADIENT_CLIPPING": "0.5",
        },
        None,
    ),
    (
        MEGATRON,
        None,
    ),
    (
        {
            **MEGATRON,
            "MEGATRON_LM_TP_DEGREE": "2",
            "MEGATRON_LM_PP_DEGREE": "2",
            "MEGATRON_LM_NUM_MICRO_BATCHES": "4",
            "MEGATRON_LM_SEQUENCE_PARALLELISM": "true",
            "MEGATRON_LM_RECOMPUTE_ACTIVATIONS": "true",
            "MEGATRON_LM_RECOMPUTE_METHOD": "block",
            "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER": "true",
            "MEGATRON_LM_NO_LOAD_OPTIM": "true",
        },
        None,
    ),
    (
        {
            **MEGATRON,
            "MEGATRON_LM_NUM_MICRO_BATCHES": "4",
            "MEGATRON_LM_SEQUENCE_PARALLELISM": "true",
            "MEGATRON_LM_RECOMPUTE_NUM_LAYERS": "2",
            "MEGATRON_LM_ATTENTION_BACKEND": "false",
            "MEGATRON_LM_HIDDEN_DROPOUT": "0.1",
            "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS": "2",
        },
        None,
    ),
    ({**MEGATRON, "MEGATRON_LM_ATTENTION_BACKEND": "flash", "PARALLELISM_CONFIG_TP_SIZE": "2"}, None),
    ({"PARALLELISM_CONFIG_CP_SIZE": "2", "PARALLELISM_CONFIG_CP_COMM_STRATEGY": "alltoall"}, None),
    (
        {
            "PARALLELISM_CONFIG_SP_SIZE": "2",
            "PARALLELISM_CONFIG_SP_SEQ_LENGTH": "16",
            "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE": "false",
        },
        None,
    ),
    ({"PARALLELISM_CONFIG_SP_SIZE": "2", "PARALLELISM_CONFIG_CP_SIZE": "2"}, None),
    (
        {"ACCELERATE_MIXED_PRECISION": "bf16"},
        """distributed_type: DEEPSPEED
mixed_precision: fp16
num_processes: 2
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 2
  offload_optimizer_device: cpu
  zero3_init_flag: true
""",
    ),
    (
        {"FSDP_OFFLOAD_PARAMS": "true"},
        """distributed_type: FSDP
num_processes: 4
dynamo_config: {dynamo_backend: INDUCTOR}
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: 2
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
""",
    ),
    (
        {},
        """distributed_type: MEGATRON_LM
num_processes: 8
megatron_lm_config:
  megatron_lm_tp_degree: 2
  megatron_lm_gradient_clipping: 0.5
  megatron_lm_eod_mask_loss: true
""",
    ),
    ({}, "distributed_type: MULTI_CPU\nnum_processes: 2\ndebug: true\ngradient_accumulation_steps: 3\n"),
]


def explain(tool, variables, config, home):
    arguments = [tool, "config", "show", "--explain"]
    if config is not None:
        (home / "run.yaml").write_text(config)
        arguments += ["--config_file", "run.yaml"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    run = subprocess.run(arguments, env=environment, cwd=home, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def main():
    tool = os.path.abspath(sys.argv[1])
    found = []
    with tempfile.TemporaryDirectory() as directory:
        home = pathlib.Path(directory)
        plain = explain(tool, {}, None, home)
        usual = set(plain[: plain.index("which asks for")])
        for variables, config in CASES:
            found += [f"{name}={value}" for name, value in variables.items()]
            found += [] if config is None else ["run.yaml:", *("  " + line for line in config.splitlines())]
            lines = explain(tool, variables, config, home)
            found += ["->", *(line for line in lines if line not in usual), "", ""]
    if sys.argv[2:] == ["--record"]:
        RECORD.write_text("\n".join(found))
        return
    recorded = RECORD.read_text().split("\n")
    changes = list(difflib.unified_diff(recorded, found, "recorded", "found", lineterm=""))
    if changes:
        sys.exit("\n".join(changes))


main()
