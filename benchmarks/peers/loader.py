#!/usr/bin/env python3
"""The Python original of CASE=loader: DataLoader prepared by Accelerate; the baseline is the same without it. Each run of a figure is a
fresh process, because a start is cold only once."""
import json
import statistics
import subprocess
import sys
import time

SAMPLES, BATCH, SKIPPED, BATCHES = 32_000_000, 32, 500_000, 2000


def mebibytes(key):
    return [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)][0] / 1024


def child(kind, mode):
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, Dataset
    torch.set_num_threads(1)

    class Indices(Dataset):
        def __len__(self): return SAMPLES
        def __getitem__(self, i): return i

    class Tiny(Dataset):
        rows = torch.rand(320_000, 64) if kind.startswith("rate") else None
        def __len__(self): return 320_000
        def __getitem__(self, i): return self.rows[i], i % 10

    accelerator = Accelerator(cpu=True)
    wrap = accelerator.prepare if mode == "accelerate" else lambda loader: loader
    if kind.startswith("rate"):
        batches = iter(wrap(DataLoader(Tiny(), batch_size=BATCH, shuffle=True, num_workers=int(kind[4:]))))
        next(batches)
        start = time.perf_counter()
        for _ in range(BATCHES):
            next(batches)
        print(BATCHES * BATCH / (time.perf_counter() - start), 0, flush=True)
        import os
        os._exit(0)
    loader = wrap(DataLoader(Indices(), batch_size=BATCH, shuffle=True))
    before, start = mebibytes("VmRSS"), time.perf_counter()
    if kind == "skip":
        loader = accelerator.skip_first_batches(loader, SKIPPED)
    next(iter(loader))
    print((time.perf_counter() - start) * 1e3, mebibytes("VmHWM") - before)


def run(kind, mode):
    output = subprocess.run([sys.executable, __file__, kind, mode], capture_output=True, text=True, check=True).stdout
    return [float(word) for word in output.split()[-2:]]


def main():
    figures = [("first", 0, "python_first_batch_ms", "ms", 3), ("first", 1, "python_first_batch_mb", "MiB", 3),
               ("skip", 0, "python_skip_ms", "ms", 3), ("rate0", 0, "python_samples", "1/s", 3),
               ("rate2", 0, "python_two_workers_samples", "1/s", 3)]
    for kind, place, metric, unit, runs in figures:
        pairs = [(run(kind, "accelerate")[place], run(kind, "plain")[place]) for _ in range(runs)]
        value, baseline = (statistics.median(column) for column in zip(*pairs))
        print(json.dumps({"case": "loader", "metric": metric, "value": round(value, 3), "unit": unit,
                          "baseline": round(baseline, 3), "ratio": round(value / baseline, 4), "runs": runs}), flush=True)


if __name__ == "__main__":
    child(*sys.argv[1:]) if len(sys.argv) == 3 else main()
