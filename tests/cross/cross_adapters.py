"""Adapters in both directions: PEFT makes one, C++ trains and saves it, and PEFT loads what C++ saved: the same loss, with the
adapter and with the merged weights.

usage: python cross_adapters.py CROSS_ADAPTERS [CASE...]

Exits with 1 if a loss differs by more than 3e-6 of it, with 77 if peft, torch or transformers is missing.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    import transformers  # noqa: F401: programs are its models
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "python")]
from accelerate_cpp_export import export_for_cpp  # noqa: E402
from make_adapter_cases import CASES, model_of  # noqa: E402
from make_exported_programs import build, loss_of, write_safetensors  # noqa: E402

TOLERANCE = 3e-6
CHOSEN = ["kinds", "dora", "patterns", "bias", "saved", "llama", "llama_all", "gpt2"]


def write_base(kind, path):
    if kind == "mixed":
        write_safetensors(path, dict(model_of("mixed")[0].state_dict()))
        return
    model, args, kwargs, shapes, _ = build(kind)
    export_for_cpp(model.eval(), path, args, kwargs, dynamic_shapes=shapes)


def check(program, name, directory):
    kind, config = CASES[name]
    base = directory / ("base.safetensors" if kind == "mixed" else "base.pt2")
    write_base(kind, base)
    model, args, kwargs = model_of(kind)
    write_safetensors(directory / "inputs.safetensors", {f"input.{i}": each for i, each in enumerate([*args, *kwargs.values()])})
    adapted = get_peft_model(model, LoraConfig(**config))
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if "lora_" in key and "magnitude" not in key:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(directory / "theirs")
    out = directory / "ours"
    ours = float(subprocess.run(
        [program, base, directory / "inputs.safetensors", directory / "theirs", out], check=True, capture_output=True, text=True).stdout)
    loaded = PeftModel.from_pretrained(model_of(kind)[0], out).eval()
    merged = model_of(kind)[0].eval()
    result = merged.load_state_dict(load_file(out / "merged" / "model.safetensors"), strict=False)
    # Tied weights are written once.
    if result.unexpected_keys or any(not key.endswith("lm_head.weight") for key in result.missing_keys):
        raise SystemExit(f"{name}: the merged weights do not fit: {result}")
    with torch.no_grad():
        losses = [loss_of(each(*args, **kwargs)).item() for each in (loaded, merged)]
    print(f"{name}: {ours:.9g} in C++, {losses[0]:.9g} with PEFT, {losses[1]:.9g} merged")
    return all(abs(loss - ours) <= TOLERANCE * (1 + abs(ours)) for loss in losses)


def main():
    failed = []
    for name in sys.argv[2:] or CHOSEN:
        with tempfile.TemporaryDirectory() as directory:
            if not check(sys.argv[1], name, Path(directory)):
                failed.append(name)
    if failed:
        print("different losses: " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
