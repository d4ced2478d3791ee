#!/usr/bin/env python3
"""Measures the forwards from disk of `make bench CASE=offload` with Python's Accelerate: load_checkpoint_and_dispatch() of the same
model of 24 blocks, its forward with the file in the page cache (warm) and without (cold), and the forward of the model in memory.

usage: python offload.py [DIRECTORY ON THE DISK TO MEASURE]
"""
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from safetensors.torch import save_file

WIDTH, BLOCKS, ROUNDS = 2048, 24, 5


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, WIDTH)
        self.down = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(BLOCKS):
            self.add_module(f"block{i}", Block())
        # Accelerate refuses a map that contains only "disk".
        self.tail = torch.nn.Linear(1, 1)

    def forward(self, x):
        for i in range(BLOCKS):
            x = getattr(self, f"block{i}")(x)
        return x


def forget(directory):
    """Evicts a directory's files from the page cache, including files that were offloaded there."""
    for folder, _, names in os.walk(directory):
        for name in names:
            file = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def milliseconds(work, before=lambda: None):
    times = []
    for _ in range(ROUNDS):
        before()
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main():
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    directory = tempfile.mkdtemp(prefix="offload-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        x = torch.randn(8, WIDTH)
        net = Net()
        wanted = net(x)
        figures = {"resident_forward_ms": milliseconds(lambda: net(x))}
        save_file(net.state_dict(), os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
        del net
        with init_empty_weights():
            net = Net()
        places = {f"block{i}": "disk" for i in range(BLOCKS)} | {"tail": "cpu"}
        start = time.perf_counter()
        net = load_checkpoint_and_dispatch(net, os.path.join(directory, "model.safetensors"), device_map=places,
                                           offload_folder=os.path.join(directory, "offload"))
        figures["load_ms"] = (time.perf_counter() - start) * 1e3
        torch.testing.assert_close(net(x), wanted)
        figures["disk_forward_ms_warm"] = milliseconds(lambda: net(x))
        figures["disk_forward_ms_cold"] = milliseconds(lambda: net(x), lambda: forget(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for metric, value in figures.items():
        print(json.dumps({"case": "offload", "peer": "accelerate", "metric": metric, "value": round(value, 2), "unit": "ms", "runs": ROUNDS}))


if __name__ == "__main__":
    main()
