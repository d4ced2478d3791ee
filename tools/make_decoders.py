#!/usr/bin/env python3
"""Makes the programs of tests/examples/serve: small models exported by export_decoder_for_cpp(), and the tokens that Python generates.

    python tools/make_decoders.py OUT [NAME...]

Needs torch and transformers. Writes NAME.pt2 and NAME.safetensors, whose tensors are prompt.I, and greedy.I, what generate() adds
to it without sampling.

    tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -czf tests/examples/serve/decoders.tar.gz -C OUT .
"""
import pathlib
import sys

import torch

from make_exported_programs import causal, write_safetensors
from accelerate_cpp_export import export_decoder_for_cpp

MAX_BATCH, MAX_LENGTH, NEW_TOKENS = 4, 64, 12
PROMPTS = [[5, 6, 7], [9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [33, 20], [3, 1, 3]]
# Wide enough that the best token is far from the second best.
RANGE = 0.4


def build(name):
    import transformers as hf
    torch.manual_seed(0)
    if name == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=64, n_positions=MAX_LENGTH, n_embd=16, n_layer=2, n_head=4,
                                                initializer_range=RANGE, bos_token_id=1, eos_token_id=2))
    if name == "mistral":
        return causal("Mistral", sliding_window=4, initializer_range=RANGE)
    return causal({"llama": "Llama", "qwen3": "Qwen3"}[name], initializer_range=RANGE)


def main(out, *names):
    torch.set_num_threads(1)
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name in names or ("llama", "qwen3", "mistral", "gpt2"):
        model = build(name)
        export_decoder_for_cpp(model, out / f"{name}.pt2", MAX_BATCH, MAX_LENGTH)
        model.eval()
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        tensors = {}
        for i, prompt in enumerate(PROMPTS):
            generated = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS)
            tensors[f"prompt.{i}"] = torch.tensor(prompt)
            tensors[f"greedy.{i}"] = generated[0, len(prompt):]
        write_safetensors(out / f"{name}.safetensors", tensors)


if __name__ == "__main__":
    main(*sys.argv[1:])
