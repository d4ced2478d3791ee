#!/usr/bin/env python3
"""The Python original of CASE=cli: `accelerate --help` and `env`, two ranks to the end of their first all-reduce, and restarts by torchrun."""
import ctypes
import json
import os
import signal
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
RESTART = """
import os, signal, sys, time
import torch
from accelerate import Accelerator
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
a = Accelerator(cpu=True)
model = a.prepare(torch.nn.Linear(64, 64))
sgd = a.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
def step():
    sgd.zero_grad()
    a.backward(model(torch.ones(2, 64)).sum())
    sgd.step()
def stamp():
    open(sys.argv[1], "a").write(f"{time.monotonic()}\\n")
step()
if first and a.process_index == 1:
    stamp()
    os.kill(os.getpid(), signal.SIGKILL)
if not first and a.is_main_process:
    stamp()
while first:
    step()
a.end_training()
"""
RUNS = 7
PATIENCE = 30


def seconds(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def adopt_orphans():
    """Makes this process the parent of every descendant whose own parent ends (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) != 0:
        sys.exit(f"cannot become a subreaper: {os.strerror(ctypes.get_errno())}")


def children_of(parent):
    children = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                # The name, in parentheses, can contain spaces.
                if int(file.read().rpartition(")")[2].split()[1]) == parent:
                    children.append(int(entry))
        except OSError:
            pass  # The process has ended.
    return children


def end_descendants():
    """Kills the processes that a run left: torchrun's ranks have their own sessions, which signals to torchrun's group do not reach."""
    while children := children_of(os.getpid()):
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # Its children are now ours.


def figure(metric, values, base, unit):
    value, baseline = statistics.median(values), statistics.median(base)
    print(json.dumps({"case": "cli", "metric": metric, "value": round(value, 3), "unit": unit,
                      "baseline": round(baseline, 3), "ratio": round(value / baseline, 3), "runs": len(values)}))


adopt_orphans()
with tempfile.TemporaryDirectory() as directory:
    script = os.path.join(directory, "rank.py")
    with open(script, "w") as file:
        file.write(RANK)
    help_, plain, two, hello = [], [], [], []
    for _ in range(RUNS):
        plain.append(seconds([sys.executable, "-c", "pass"]))
        help_.append(seconds([sys.executable, "-m", "accelerate.commands.accelerate_cli", "--help"]))
        hello.append(seconds([sys.executable, "-c", "import torch; print(torch.ones(4).sum())"]))
        two.append(seconds([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", script]))
    env, restarts, lost = [], [], 0
    again = os.path.join(directory, "again.py")
    with open(again, "w") as file:
        file.write(RESTART)
    for run in range(RUNS):
        env.append(seconds([sys.executable, "-m", "accelerate.commands.accelerate_cli", "env"]))
        stamps = os.path.join(directory, f"stamps{run}")
        process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--max_restarts", "1",
                                    again, stamps], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(PATIENCE)
            died, stepped = (float(line) for line in open(stamps))
            restarts.append(stepped - died)
        except (subprocess.TimeoutExpired, ValueError):
            lost += 1
        end_descendants()
    figure("python_env_ms", [1000 * v for v in env], [1000 * v for v in plain], "ms")
    if restarts:
        figure("python_restart_ms", [1000 * v for v in restarts], [1000 * v for v in hello], "ms")
    print(json.dumps({"case": "cli", "metric": "python_restarts_that_did_not_come_back", "value": lost, "unit": "runs", "runs": RUNS}))
    figure("python_help_ms", [1000 * v for v in help_], [1000 * v for v in plain], "ms")
    figure("python_two_ranks_ms", [1000 * v for v in two], [1000 * v for v in hello], "ms")
