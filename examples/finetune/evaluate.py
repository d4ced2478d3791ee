"""Reads what finetune.cpp saved, strictly, and prints the loss that it prints.

    python evaluate.py DIRECTORY TOKENS [--dtype uint8] [--block_size 128]
"""
import argparse

import numpy
import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("tokens")
    parser.add_argument("--dtype", default="uint8")
    parser.add_argument("--block_size", type=int, default=128)
    options = parser.parse_args()
    model, report = AutoModelForCausalLM.from_pretrained(options.directory, dtype=torch.float32, output_loading_info=True)
    different = {kind: names for kind, names in report.items() if names}
    if different:
        raise SystemExit(f"the weights are not those of the model: {different}")
    tokens = torch.from_numpy(numpy.fromfile(options.tokens, options.dtype).astype(numpy.int64))
    size = options.block_size
    count = (len(tokens) - 1) // size
    inputs, targets = (part[: count * size].view(count, size) for part in (tokens, tokens[1:]))
    with torch.no_grad():
        logits = torch.cat([model.eval()(input_ids=part).logits for part in inputs.split(16)])
    print(f"evaluation: loss {torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()):.4f}")


if __name__ == "__main__":
    main()
