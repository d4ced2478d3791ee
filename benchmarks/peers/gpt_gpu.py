#!/usr/bin/env python3
"""The GPT of examples/gpt trained with Python's Accelerate: fused AdamW, clipping, and the loss read after each step.

usage: gpt_gpu.py TEXT STEPS BATCH BLOCK LAYERS HEADS WIDTH bf16|fp8 eager|inductor cuda|cpu

Prints a line of JSON: milliseconds and tokens per second without the first steps (as examples/gpt counts), the last loss
and the peak of the device's memory. Exits with 77 and {"skipped": why} if a package is missing.
"""
import importlib.util
import json
import sys
import time

NUM_TOKENS = 256


def skip(reason):
    print(json.dumps({"skipped": reason}))
    sys.exit(77)


def require(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            skip(f"the Python package {package} is missing")


def make_model(layers, heads, width, block):
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(-2))
            return x + self.mlp(self.norm2(x))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(NUM_TOKENS, width), nn.Embedding(block, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            nn.init.normal_(self.tokens.weight, 0, 0.02), nn.init.normal_(self.positions.weight, 0, 0.02)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
            for each in self.blocks:
                x = each(x)
            return self.norm(x) @ self.tokens.weight.t()

    return Gpt()


def make_accelerator(precision, mode, device):
    from accelerate import Accelerator

    options = {"mixed_precision": precision, "cpu": device == "cpu"}
    if mode == "inductor":
        options["dynamo_backend"] = "inductor"
    if precision == "fp8":
        from accelerate.utils import AORecipeKwargs

        options["kwargs_handlers"] = [AORecipeKwargs()]
    return Accelerator(**options)


def batches(file, count, batch, block, device):
    """Random pieces of the text and the bytes that follow them, on the device."""
    import torch

    with open(file, "rb") as stream:
        data = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        places = torch.randint(0, len(data) - block, (batch,), generator=generator)
        pieces = torch.stack([data[place : place + block + 1] for place in places])
        if device.type != "cpu":
            pieces = pieces.pin_memory().to(device, non_blocking=True)
        yield pieces[:, :-1], pieces[:, 1:]


def main():
    text, (steps, batch, block, layers, heads, width), (precision, mode, device) = sys.argv[1], map(int, sys.argv[2:8]), sys.argv[8:11]
    require("torch", "accelerate", *(["torchao"] if precision == "fp8" else []))
    require(*(["triton"] if mode == "inductor" and device == "cuda" else []))
    import torch
    from torch.nn import functional

    accelerator = make_accelerator(precision, mode, device)
    torch.manual_seed(1)
    with torch.device(accelerator.device):
        model = make_model(layers, heads, width, block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    num_ignored, start, value = min(10, steps // 2), time.perf_counter(), 0.0
    for step, (tokens, targets) in enumerate(batches(text, steps, batch, block, accelerator.device)):
        if step == num_ignored:
            start = time.perf_counter()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
    ms = (time.perf_counter() - start) / (steps - num_ignored) * 1e3
    figures = {"ms": round(ms, 3), "tokens_per_s": round(batch * block / ms * 1e3), "loss": round(value, 4)}
    if accelerator.device.type == "cuda":
        figures["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
