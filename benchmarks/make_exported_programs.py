#!/usr/bin/env python3
"""Makes the programs of `make bench CASE=exported`.

    python benchmarks/make_exported_programs.py OUT

Needs torch and transformers, and no memory for Llama's weights: nothing reads them. Writes
* calls.pt2: 112 operators on few numbers, so that calling them takes longest;
* gpt.pt2: the model of examples/gpt, with the sizes of exported.cpp; all its weights are 0;
* llama_7b.pt2: Llama with 32 layers and 6.7 billion parameters, without them.

    tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -cJf benchmarks/exported_programs.tar.xz -C OUT .
"""
import pathlib
import sys

import torch
from torch import nn
from torch.export import Dim

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
from accelerate_cpp_export import export_for_cpp  # noqa: E402

TOKENS, BLOCK_SIZE, LAYERS, HEADS, WIDTH = 256, 128, 4, 4, 256


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        for _ in range(16):
            h = torch.relu(self.linear(self.norm(x)))
            x = (h.view(2, 2, 4).transpose(0, 1).reshape(4, 4) * 0.5) + x
        return x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        heads = [part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(BLOCK_SIZE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return torch.matmul(self.norm(x), self.tokens.weight.t())


def unread_weights(make):
    """Makes a model whose parameters have memory that is never touched."""
    with torch.device("meta"):
        model = make()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(parameter.shape)))
    return model


def llama():
    import transformers
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        max_position_embeddings=4096, use_cache=False)
    model = unread_weights(lambda: transformers.LlamaForCausalLM(config))
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # which has a buffer
    return model


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    export_for_cpp(Calls(), out / "calls.pt2", (torch.zeros(4, 4),))
    tokens = torch.zeros(8, BLOCK_SIZE, dtype=torch.long)
    sizes = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=3, max=BLOCK_SIZE)}
    gpt = Gpt()
    for parameter in gpt.parameters():
        nn.init.zeros_(parameter)
    export_for_cpp(gpt, out / "gpt.pt2", (tokens,), dynamic_shapes={"tokens": sizes})
    model = llama()
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    inputs = {"input_ids": tokens, "labels": tokens}
    sizes = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=3, max=4096)}
    export_for_cpp(model, out / "llama_7b.pt2", kwargs=inputs, dynamic_shapes=dict.fromkeys(inputs, sizes), weights=False, check=False)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
