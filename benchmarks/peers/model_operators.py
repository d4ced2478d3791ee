#!/usr/bin/env python3
"""The Python original of CASE=model_operators: operators in a step of the same ten models, with fused AdamW.

With the argument `list`, also prints how often each operator runs.
"""
import json
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile


def mlp():
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def conv(source, to, size):
    return nn.Conv2d(source, to, size, padding=size // 2, bias=False)


def cnn():
    return nn.Sequential(
        conv(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        conv(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            conv(width, width, 3), nn.BatchNorm2d(width), nn.ReLU(), conv(width, width, 3), nn.BatchNorm2d(width)
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def resnet():
    return nn.Sequential(
        conv(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), Residual(16), Residual(16), Residual(16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(100, 32), nn.Linear(64, 100)
        self.lstm = nn.LSTM(32, 64, num_layers=2, batch_first=True)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.encoder(x).mean(0))


def feed_forward(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = feed_forward(width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(100, 64), nn.Embedding(16, 64)
        self.blocks, self.norm = nn.Sequential(Block(64), Block(64)), nn.LayerNorm(64)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))
        return self.norm(self.blocks(x)) @ self.tokens.weight.t()


class VitBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.attention, self.mlp = nn.MultiheadAttention(64, 4), feed_forward(64)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, stride=8)
        self.positions = nn.Parameter(torch.zeros(16, 1, 64))
        self.blocks, self.head = nn.Sequential(VitBlock(), VitBlock()), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).permute(2, 0, 1) + self.positions).mean(0))


def convolved(source, to):
    return nn.Sequential(conv(source, to, 3), nn.GroupNorm(4, to), nn.SiLU())


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = convolved(3, 16), convolved(16, 32), convolved(32, 16)
        self.up, self.head = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(16, 3, 1)

    def forward(self, x):
        wide = self.first(x)
        deep = self.second(F.max_pool2d(wide, 2))
        return self.head(self.last(torch.cat([self.up(deep), wide], 1)))


class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.head = nn.Linear(64, 4), nn.Linear(64, 10)
        self.experts = nn.ModuleList(feed_forward(64) for _ in range(4))

    def forward(self, x):
        weights, chosen = torch.softmax(self.router(x), -1).max(-1)
        mixed = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == i).flatten()
            y = expert(x.index_select(0, rows)) * weights.index_select(0, rows).unsqueeze(-1)
            mixed = mixed.index_add(0, rows, y)
        return self.head(x + mixed)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(200, 16, mode="sum") for _ in range(4))
        self.top = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, ids):
        rows = torch.stack([table(ids) for table in self.tables], 1)
        return self.top(torch.bmm(rows, rows.transpose(1, 2)).flatten(1))


def loss_of(logits, targets):
    if logits.shape == targets.shape:
        return F.mse_loss(logits, targets)
    return F.cross_entropy(logits.flatten(0, 1) if logits.dim() == 3 else logits, targets.flatten())


def count(net, x, y):
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step():
        loss_of(net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step(), step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    return {event.key: event.count for event in profiler.key_averages() if event.key.startswith("aten::")}


def ids(*sizes):
    return torch.randint(10, sizes)


torch.manual_seed(1)
images = torch.randn(4, 3, 32, 32)
MODELS = {
    "mlp": (mlp, torch.randn(8, 64), ids(8)),
    "cnn": (cnn, images, ids(4)),
    "resnet": (resnet, images, ids(4)),
    "lstm": (Lstm, ids(4, 16), ids(4, 16)),
    "encoder": (Encoder, torch.randn(16, 4, 64), ids(4)),
    "gpt": (Gpt, ids(4, 16), ids(4, 16)),
    "vit": (Vit, images, ids(4)),
    "unet": (Unet, images, torch.randn(4, 3, 32, 32)),
    "moe": (Moe, torch.randn(32, 64), ids(32)),
    "recommender": (Recommender, ids(8, 5), ids(8)),
}
for name, (make, x, y) in MODELS.items():
    counts = count(make(), x, y)
    print(json.dumps({"case": "model_operators", "metric": f"python_{name}", "value": sum(counts.values()), "unit": "operators"}))
    if "list" in sys.argv[1:]:
        for operation, number in sorted(counts.items()):
            print(name, operation, number)
