"""Exports a causal model of Hugging Face for finetune.cpp, once: writes DIRECTORY/model.pt2, the program without weights.

    python export.py DIRECTORY [--precision bf16] [--max_length 2048]

DIRECTORY has the model's config.json and safetensors. accelerate_cpp_export.py is found beside this repository's copy, or
where the library is installed (share/accelerate/python, in PYTHONPATH).
"""
import argparse
import pathlib
import sys

import torch
from torch.export import Dim
from transformers import AutoModelForCausalLM

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from accelerate_cpp_export import export_for_cpp  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--precision", choices=["no", "bf16", "fp16"], default="no", help="the --precision of finetune")
    parser.add_argument("--max_length", type=int, help="of a sequence; the model's maximum if not given")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.directory, use_cache=False, dtype=torch.float32)
    longest = options.max_length or model.config.max_position_embeddings
    ids = torch.zeros(2, 16, dtype=torch.long)
    sizes = {0: Dim("batch", min=1, max=4096), 1: Dim("length", min=3, max=longest)}
    export_for_cpp(
        model, options.directory / "model.pt2", kwargs=dict(input_ids=ids, labels=ids),
        dynamic_shapes=dict(input_ids=sizes, labels=sizes), weights=False,
        autocast={"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[options.precision])


if __name__ == "__main__":
    main()
