#!/usr/bin/env python3
"""The Python original of CASE=track: Accelerate's log() with TensorBoard, in a loop that trains the same net between calls."""
import json
import statistics
import sys
import tempfile
import time

import torch
from accelerate import Accelerator

try:
    from torch.utils.tensorboard import SummaryWriter  # noqa: F401
except ImportError:
    print("track: this Python has no tensorboard, so its log() is not measured", file=sys.stderr)
    sys.exit(0)

STEPS, BLOCKS = 100, 40
torch.set_num_threads(1)
torch.manual_seed(1)
x, y = torch.randn(64, 256), torch.randint(10, (64,))
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
                          torch.nn.Linear(512, 10))
sgd = torch.optim.SGD(net.parameters(), 1e-3)


def train():
    sgd.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    sgd.step()
    return loss.item()


def block(accelerator, first):
    total = 0
    for step in range(first, first + STEPS):
        loss = train()
        start = time.perf_counter_ns()
        accelerator.log({"loss": loss}, step=step)
        total += time.perf_counter_ns() - start
    return total / STEPS / 1e3


with tempfile.TemporaryDirectory() as directory:
    silent = Accelerator(cpu=True)
    logging = Accelerator(cpu=True, log_with="tensorboard", project_dir=directory)
    logging.init_trackers("benchmark", {"lr": 1e-3})
    block(silent, 0), block(logging, 0)
    plain, logged = [], []
    for i in range(1, BLOCKS + 1):
        plain.append(block(silent, i * STEPS))
        logged.append(block(logging, i * STEPS))
    value, base = statistics.median(logged), statistics.median(plain)
    print(json.dumps({"case": "track", "metric": "python_log_tensorboard_us", "value": round(value, 3), "unit": "us",
                      "baseline": round(base, 3), "ratio": round(value / base, 4), "runs": BLOCKS}))
    logging.end_training()
