#!/usr/bin/env python3
"""The Python original of CASE=launch: `accelerate --help`, and two ranks to the end of their first all-reduce."""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

RANK = """
import torch, torch.distributed as dist
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
accelerator.reduce(torch.ones(4), "sum")
accelerator.end_training()
"""
RUNS = 7


def seconds(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def figure(metric, values, base, unit):
    value, baseline = statistics.median(values), statistics.median(base)
    print(json.dumps({"case": "launch", "metric": metric, "value": round(value, 3), "unit": unit,
                      "baseline": round(baseline, 3), "ratio": round(value / baseline, 3), "runs": len(values)}))


with tempfile.TemporaryDirectory() as folder:
    script = os.path.join(folder, "rank.py")
    with open(script, "w") as file:
        file.write(RANK)
    help_, plain, two, hello = [], [], [], []
    for _ in range(RUNS):
        plain.append(seconds([sys.executable, "-c", "pass"]))
        help_.append(seconds([sys.executable, "-m", "accelerate.commands.accelerate_cli", "--help"]))
        hello.append(seconds([sys.executable, "-c", "import torch; print(torch.ones(4).sum())"]))
        two.append(seconds([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", script]))
    figure("python_help_ms", [1000 * v for v in help_], [1000 * v for v in plain], "ms")
    figure("python_two_ranks_ms", [1000 * v for v in two], [1000 * v for v in hello], "ms")
