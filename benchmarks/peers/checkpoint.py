"""Measures `make bench CASE=checkpoint` with Python's Accelerate: save_state() of 1.2 GB of model and AdamW state until it
returns and until it is on the disk (os.sync), and load_state(); and the memory each adds.

usage: python checkpoint.py [DIRECTORY ON THE DISK TO MEASURE]
"""
import json
import os
import shutil
import statistics
import sys
import time

import torch
from accelerate import Accelerator


def memory(key):
    with open("/proc/self/status") as status:
        return [int(line.split()[1]) for line in status if line.startswith(key)][0] / 1024


def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else "bench_checkpoint_scratch"
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(24)])
    adamw = torch.optim.AdamW(net.parameters(), 1e-3)
    net, adamw = accelerator.prepare(net, adamw)
    accelerator.backward(net(torch.randn(2, 2048)).square().mean())
    adamw.step()
    adamw.zero_grad()
    figures = {"returns_ms": [], "durable_ms": [], "save_extra_mb": [], "load_ms": [], "load_extra_mb": []}
    for _ in range(5):
        shutil.rmtree(directory, ignore_errors=True)
        os.sync()
        forget_peak()
        before, start = memory("VmRSS:"), time.perf_counter()
        accelerator.save_state(directory)
        figures["returns_ms"].append((time.perf_counter() - start) * 1e3)
        os.sync()
        figures["durable_ms"].append((time.perf_counter() - start) * 1e3)
        figures["save_extra_mb"].append(memory("VmHWM:") - before)
        forget_peak()
        before, start = memory("VmRSS:"), time.perf_counter()
        accelerator.load_state(directory)
        figures["load_ms"].append((time.perf_counter() - start) * 1e3)
        figures["load_extra_mb"].append(memory("VmHWM:") - before)
    shutil.rmtree(directory, ignore_errors=True)
    for metric, values in figures.items():
        print(json.dumps({"case": "checkpoint", "peer": "accelerate", "metric": metric, "value": statistics.median(values)}))


if __name__ == "__main__":
    main()
