#!/usr/bin/env python3
"""The Python original of CASE=whole_step: the same models and loop through Accelerate (fused AdamW); the baseline is PyTorch by hand."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from interleave import interleave

HEADS, WIDTH, LAYERS, BLOCK = 4, 256, 4, 128


def mlp():
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.encoder(x).mean(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tokens.weight, 0, 0.02), nn.init.normal_(self.positions.weight, 0, 0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.t()


def convolution(previous, channels, size, stride):
    return nn.Sequential(nn.Conv2d(previous, channels, size, stride, size // 2, bias=False), nn.BatchNorm2d(channels))


class Residual(nn.Module):
    def __init__(self, previous, channels, stride):
        super().__init__()
        self.first, self.second = convolution(previous, channels, 3, stride), convolution(channels, channels, 3, 1)
        self.shortcut = convolution(previous, channels, 1, stride)

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def cnn():
    return nn.Sequential(
        convolution(3, 32, 3, 1), nn.ReLU(), Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def loss_of(logits, targets):
    return F.cross_entropy((logits.flatten(0, 1) if logits.dim() == 3 else logits).float(), targets.flatten())


def steps(make, x, y, precision):
    torch.manual_seed(1)
    # A process has one precision otherwise.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    net = make()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True))

    def prepared():
        accelerator.backward(loss_of(model(x), y))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    plain_net = make()
    plain_optimizer = torch.optim.AdamW(plain_net.parameters(), lr=3e-4)

    def by_hand():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = plain_net(x)
        loss_of(logits, y).backward()
        torch.nn.utils.clip_grad_norm_(plain_net.parameters(), 1.0)
        plain_optimizer.step()
        plain_optimizer.zero_grad()

    return prepared, by_hand


CASES = {
    "mlp": (mlp, lambda: torch.randn(128, 256), lambda: torch.randint(10, (128,))),
    "encoder": (Encoder, lambda: torch.randn(128, 8, 256), lambda: torch.randint(10, (8,))),
    "gpt": (Gpt, lambda: torch.randint(256, (8, 128)), lambda: torch.randint(256, (8, 128))),
    "cnn": (cnn, lambda: torch.randn(64, 3, 32, 32), lambda: torch.randint(10, (64,))),
}
chosen = sys.argv[1:]


def is_chosen(family, name):
    return not set(chosen) & set(family) or name in chosen


for name, (make, x, y) in CASES.items():
    if not is_chosen(CASES, name):
        continue
    for threads, words in ((1, "one_thread"), (2, "two_threads")):
        if not is_chosen(("1", "2"), str(threads)):
            continue
        torch.set_num_threads(threads)
        for precision, label in (("no", "fp32"), ("bf16", "bf16")):
            if is_chosen(("no", "bf16"), precision):
                interleave("whole_step", f"python_{name}_{label}_{words}_us", 15, 1, *steps(make, x(), y(), precision))
