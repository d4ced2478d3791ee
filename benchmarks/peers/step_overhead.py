#!/usr/bin/env python3
"""The Python original of CASE=step_overhead: the same MLP by hand and through Accelerate, in interleaved blocks."""
import json
import statistics
import time

import torch
from accelerate import Accelerator

STEPS, BLOCKS = 50, 200
torch.set_num_threads(1)
torch.manual_seed(1)
x, y = torch.randn(32, 64), torch.randint(10, (32,))


def net():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


plain = net()
plain_sgd = torch.optim.SGD(plain.parameters(), 1e-3)
accelerator = Accelerator(cpu=True)
inner = net()
model, sgd = accelerator.prepare(inner, torch.optim.SGD(inner.parameters(), 1e-3))


def by_hand():
    plain_sgd.zero_grad()
    torch.nn.functional.cross_entropy(plain(x), y).backward()
    plain_sgd.step()


def through_accelerate():
    with accelerator.accumulate(model):
        sgd.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        sgd.step()


def block(step):
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - start) / STEPS * 1e6


block(by_hand), block(through_accelerate)
hand, accelerated = [], []
for _ in range(BLOCKS):
    hand.append(block(by_hand))
    accelerated.append(block(through_accelerate))
value, base = statistics.median(accelerated), statistics.median(hand)
print(json.dumps({"case": "step_overhead", "metric": "python_added_us", "value": round(value - base, 3), "unit": "us",
                  "baseline": round(base, 3), "ratio": round(value / base, 4), "runs": BLOCKS}))
