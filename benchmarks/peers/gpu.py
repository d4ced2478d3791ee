#!/usr/bin/env python3
"""Measures the forwards from host memory and from disk of `make bench CASE=gpu` with Python's Accelerate: cpu_offload() and
load_checkpoint_and_dispatch() of the same model of 16 blocks (2.1 GB) on a CUDA device; from disk with the files in the page cache
(warm) and without (cold).

usage: python gpu.py [DIRECTORY ON THE DISK TO MEASURE]
"""
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import torch
from accelerate import cpu_offload, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.hooks import remove_hook_from_submodules
from safetensors.torch import save_file

WIDTH, BLOCKS, ROUNDS = 4096, 16, 5


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
    for i in range(ROUNDS + 1):
        before()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if i > 0:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main():
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    figures = {}
    net = Net()
    cpu_offload(net, execution_device=0)
    for rows in (64, 1024, 4096):
        x = torch.randn(rows, WIDTH, device="cuda:0")
        figures[f"cpu_to_device_ms_{rows}_rows"] = milliseconds(lambda: net(x))
    remove_hook_from_submodules(net)
    directory = tempfile.mkdtemp(prefix="offload-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        x = torch.randn(64, WIDTH, device="cuda:0")
        save_file(Net().state_dict(), os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
        with init_empty_weights():
            net = Net()
        places = {f"block{i}": "disk" for i in range(BLOCKS)} | {"tail": 0}
        net = load_checkpoint_and_dispatch(net, os.path.join(directory, "model.safetensors"), device_map=places,
                                           offload_folder=os.path.join(directory, "offload"))
        figures["disk_to_device_ms_warm"] = milliseconds(lambda: net(x))
        figures["disk_to_device_ms_cold"] = milliseconds(lambda: net(x), lambda: forget(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for metric, value in figures.items():
        print(json.dumps({"case": "gpu", "peer": "accelerate", "metric": metric, "value": round(value, 2), "unit": "ms", "runs": ROUNDS}))


if __name__ == "__main__":
    main()
